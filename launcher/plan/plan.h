// SPDX-License-Identifier: Apache-2.0
// From options and the facts of every host to who runs where. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/status.h"

namespace ivy {

// Checks everything that can be checked before a worker starts (working directory, program,
// interpreter, equal script, enough places) and says all of it at once: any entry in refusals stops
// the launch, and the plan is then only as complete as it could be made.
Result<JobPlan> make_plan(const Options& options, const std::string& job_id,
                          const std::vector<HostAnswer>& answers,
                          std::vector<Diagnostic>& refusals);

// argv of the workers of one host: the interpreter and the path of a script may differ between
// hosts.
std::vector<std::string> worker_arguments(const Options& options, const HostFacts& facts);

// "2 hosts x 2 = 4 ranks (…rule…)"; with --dry-run the whole table.
std::string plan_line(const JobPlan& plan);
std::string plan_table(const Options& options, const JobPlan& plan,
                       const std::vector<HostAnswer>& answers);

// For --report-bindings: "rank 3 on node01: processors 8-15, memory of NUMA node 1", a line each.
std::vector<std::string> binding_lines(const JobPlan& plan);

}  // namespace ivy
