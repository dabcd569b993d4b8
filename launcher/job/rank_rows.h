// What each rank does and uses, for `ivyctl top` and --metrics-file. Pure; thread: any.
#pragma once

#include <cstdint>
#include <vector>

#include "launcher/hang/operation_lines.h"
#include "launcher/job/job_workers.h"
#include "launcher/plan/job_plan.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// Hosts that have not answered have no usage in their rows.
void add_rank_rows(const JobWorkers& workers, const std::vector<HostOperations>& answers,
                   std::int64_t now_ns, ctl::RanksDescription& out);

}  // namespace ivy
