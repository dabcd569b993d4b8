// Where a rank of a communicator is, as all its ranks know it.
#pragma once

#include <cstdint>
#include <string>

namespace ivy::comm {

struct Seat {
  std::int32_t world_rank = 0;
  std::int32_t pid = 0;
  std::uint32_t host = 0;  // The host's number in the job, equal for ranks that share memory.
  std::string host_name;
  std::string address;  // Its listener's; empty if all ranks are on one host.
  // Its rank as the launcher knows it, which a repaired world may not have (group/repair.h), and
  // how many times that rank was started again before this process.
  std::uint32_t job_rank = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t process_start = 0;  // As process_state.h has it; 0: not known.
};

}  // namespace ivy::comm
