// What frameworks other than torch and JAX read to find their world. Names that cost nothing and
// mislead nobody are set for every worker; the others where -B names the framework.
// Pure; thread: any.
#pragma once

#include "launcher/plan/environment_inputs.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// For all workers of a host. The user's own values of TF_CONFIG and its like are replaced.
Environment framework_variables(const EnvironmentInputs& inputs, const PlannedHost& host);
// What differs from one worker to the next.
Environment framework_rank_variables(const EnvironmentInputs& inputs, const PlannedHost& host,
                                     const PlannedWorker& worker);
// Adds the files that these variables name.
void add_framework_files(const EnvironmentInputs& inputs, HostPlan& plan);

}  // namespace ivy
