// SPDX-License-Identifier: Apache-2.0
// Variables from which frameworks other than torch and JAX learn their world. Variables that cost
// nothing and mislead no program are set for every worker, the others only if -B names the
// framework. Pure; thread: any.
#pragma once

#include "launcher/plan/environment_inputs.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// For all workers of a host. The user's own values of TF_CONFIG and its like are replaced.
Environment framework_variables(const EnvironmentInputs& inputs, const PlannedHost& host);
// The variables that differ between workers.
Environment framework_rank_variables(const EnvironmentInputs& inputs, const PlannedHost& host,
                                     const PlannedWorker& worker);
// Adds the files that these variables name.
void add_framework_files(const EnvironmentInputs& inputs, HostPlan& plan);

}  // namespace ivy
