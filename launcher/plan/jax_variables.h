// SPDX-License-Identifier: Apache-2.0
// The environment variables that only JAX reads. worker_environment.cc adds them to those that
// every worker gets. They set JAX's reaction to SIGTERM, its number of CPU devices, and the address
// of its coordination service. If ivyrun's Python hook, which normally tells JAX its rank, is
// disabled, the variables of Open MPI tell it. Pure; thread: any.
#pragma once

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/plan_context.h"
#include "proto/contract/env.h"

namespace ivy {

// Returns defaults, which apply only to variables that the user has not set.
Environment jax_defaults(const Options& options);

// Checks --app jax-service, which runs JAX's coordination service in a separate process: rejects a
// program that is not Python, because the service needs its interpreter.
void check_jax_service(PlanContext& context);
// Returns the variables for --app jax-service that move the service inside rank 0's process, which
// JAX starts in any case, to a free port of loopback, so that no rank finds it.
Environment jax_service_variables(const Options& options);

// Returns the user's XLA flags (`user_flags`) with one for the number of CPU devices. It is
// appended, because XLA uses the last of two equal flags.
std::string xla_flags(const std::string& user_flags, int cpu_devices);

// Returns true for `-B jax --no-python-hook`, where JAX gets its rank from variables only.
bool is_jax_by_variables(const Options& options);
// Returns the variables of such a worker by which JAX detects Open MPI and its rank. JAX takes the
// coordinator's address from JAX_COORDINATOR_ADDRESS, so that Open MPI's URI may be a placeholder.
Environment jax_rank_variables(const JobPlan& plan, const PlannedWorker& worker);

}  // namespace ivy
