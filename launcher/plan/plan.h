// SPDX-License-Identifier: Apache-2.0
// Assigns ranks to hosts from the options and the facts of every host. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/status.h"

namespace ivy {

// Checks everything that can be checked before a worker starts (working directory, program,
// interpreter, equal script, enough slots) and reports all problems together. Any entry in
// `rejections` stops the launch; the plan is then only as complete as possible.
Result<JobPlan> make_plan(const Options& options, const std::string& job_id,
                          const std::vector<HostAnswer>& answers,
                          std::vector<Diagnostic>& rejections);

// Return "2 hosts x 2 = 4 ranks (…rule…)", and the whole table for --dry-run.
std::string plan_line(const JobPlan& plan);
std::string plan_table(const Options& options, const JobPlan& plan,
                       const std::vector<HostAnswer>& answers);

// Returns one line per rank for --report-bindings: "rank 3 on node01: processors 8-15, memory of
// NUMA node 1".
std::vector<std::string> binding_lines(const JobPlan& plan);

}  // namespace ivy
