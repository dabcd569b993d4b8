// SPDX-License-Identifier: Apache-2.0
// Variables that describe the world to frameworks other than torch and JAX. Variables that cost
// nothing and mislead no program are set for every worker, the others only if -B names the
// framework. Pure; thread: any.
#pragma once

#include "launcher/plan/environment_inputs.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns the variables that all workers of a host share. They override the user's own values.
Environment framework_variables(const EnvironmentInputs& inputs, const PlannedHost& host);
// Returns the variables that differ between workers, such as TF_CONFIG. They override the user's
// own values, too.
Environment framework_rank_variables(const EnvironmentInputs& inputs, const PlannedHost& host,
                                     const PlannedWorker& worker);
// Adds the files that these variables name.
void add_framework_files(const EnvironmentInputs& inputs, HostPlan& plan);

}  // namespace ivy
