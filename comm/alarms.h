// The two alarms there are: one reads the supervisor's status page, the other, where no supervisor
// is, watches the processes of this host itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/transports/alarm.h"
#include "proto/status_page.h"

namespace ivy::comm {

// Speaks of the ranks in `seats`, and of reports about the communicator of that name. The page
// outlives it.
std::unique_ptr<Alarm> make_page_alarm(const comm_status::StatusPage& page,
                                       std::string communicator, std::vector<Seat> seats,
                                       std::int32_t self);

// Watches the processes of `seats` that are on this process's host.
std::unique_ptr<Alarm> make_process_alarm(std::vector<Seat> seats, std::int32_t self);

// "rank 3 (node2, pid 4711)"
std::string name_of_rank(std::int32_t world_rank, const std::string& host, std::int32_t pid);

}  // namespace ivy::comm
