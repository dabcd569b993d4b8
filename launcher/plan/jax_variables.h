// SPDX-License-Identifier: Apache-2.0
// Variables that JAX reads in addition to those of every worker: its reaction to TERM, devices of
// the CPU, and the variables of Open MPI from which it finds its rank if ivyrun's Python hook is
// disabled. Pure; thread: any.
#pragma once

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/plan_context.h"
#include "proto/contract/env.h"

namespace ivy {

// Defaults for variables that the caller has not set.
Environment jax_defaults(const Options& options);

// --app jax-service: plans JAX's coordination service in a separate process. Rejects jobs without a
// Python program, because the service needs its interpreter.
void plan_jax_service(PlanContext& context);
// Returns the variables that move rank 0's own service to a port that no other process knows.
Environment jax_service_variables(const Options& options);

// Appends a flag for --cpu-devices to the user's XLA flags; XLA uses the last of two flags.
std::string xla_flags(const std::string& said, int cpu_devices);

// Returns true if JAX learns its rank only from variables: -B jax --no-python-hook.
bool is_jax_by_variables(const Options& options);
// Returns the variables that JAX's detection of Open MPI reads, for such a worker. JAX takes the
// coordinator's address from JAX_COORDINATOR_ADDRESS and does not parse Open MPI's URI.
Environment jax_rank_variables(const JobPlan& plan, const PlannedWorker& worker);

}  // namespace ivy
