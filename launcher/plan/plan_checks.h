// What can be said against a plan before a worker starts: working directory, program, interpreter,
// script, arguments, and ranks to show that it does not have. Pure; thread: any.
#pragma once

#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"

namespace ivy {

// Hosts with the same trouble share one refusal. Different versions of the interpreter, and some
// absent ranks to show, are only warnings of the plan. plan.arguments and plan.hosts are final.
void check_plan(const Options& options, const std::vector<HostAnswer>& answers, JobPlan& plan,
                std::vector<Diagnostic>& refusals);

}  // namespace ivy
