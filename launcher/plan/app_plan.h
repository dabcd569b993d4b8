// SPDX-License-Identifier: Apache-2.0
// Applies --app and --role to the ranks: the commands for each host, with every name in braces
// replaced (launcher/options/app_table.h). Pure; thread: any.
#pragma once

#include "launcher/options/options.h"
#include "launcher/plan/environment_inputs.h"
#include "launcher/plan/plan_context.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Rejects hosts without an interpreter if a role needs one.
void check_app_plan(PlanContext& context);

// Adds the app's servers and client to a worker's spec. Does nothing if no app runs.
void add_app_plan(const EnvironmentInputs& inputs, const PlannedHost& host,
                  const PlannedWorker& worker, WorkerSpec& spec);

}  // namespace ivy
