// Accelerators and cores of a plan in words. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"

namespace ivy {

// For --dry-run: a row for each rank with its accelerators and processors, and what each host's
// sources said. Empty where no worker has any.
std::string device_table(const JobPlan& plan, const std::vector<HostAnswer>& answers);

// For --report-bindings: "rank 3 on node01: processors 8-15, memory of NUMA node 1", a line each.
std::vector<std::string> binding_lines(const JobPlan& plan);

}  // namespace ivy
