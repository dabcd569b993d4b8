// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/jax_variables.h"

#include <csignal>

namespace ivy {
namespace {

// JAX accepts only TERM as the notice that its host will go away.
bool has_notice_for_jax(const LifecycleOptions& options) {
  const bool is_asked_for = options.stop_before_end || options.preempt_signal;
  return is_asked_for && options.preempt_signal.value_or(SIGTERM) == SIGTERM;
}

}  // namespace

Environment jax_defaults(const Options& options) {
  Environment variables;
  // With its preemption service JAX survives TERM, so that every stop would take the whole grace
  // period.
  variables.push_back(
      {"JAX_ENABLE_PREEMPTION_SERVICE", has_notice_for_jax(options) ? "true" : "false"});
  if (options.cpu_devices) variables.push_back({"JAX_PLATFORMS", "cpu"});
  // Ranks continue to run when another rank is lost, because that rank may return.
  if (options.app == App::kJaxService) variables.push_back({"JAX_ENABLE_RECOVERABILITY", "true"});
  return variables;
}

void check_jax_service(PlanContext& context) {
  if (context.options.app != App::kJaxService) return;
  const PlannedHost& first = context.plan.hosts.front();
  const bool is_module = context.options.program_kind == ProgramKind::kModule;
  if (is_module || context.facts(first.host_index).program_is_script()) return;
  context.reject(
      {.id = "IVY-P034",
       .what =
           "--app jax-service needs a Python program, and " + context.plan.program + " is not one",
       .where = first.name,
       .cause = "the service needs the jaxlib of the workers' interpreter",
       .fix =
           "pass the script itself or -m MODULE to ivyrun, or choose an interpreter with --python "
           "PATH"});
}

Environment jax_service_variables(const Options& options) {
  if (options.app != App::kJaxService) return {};
  return {{"JAX_COORDINATOR_BIND_ADDRESS", "127.0.0.1:0"}};
}

std::string xla_flags(const std::string& user_flags, int cpu_devices) {
  return user_flags + (user_flags.empty() ? "" : " ") +
         "--xla_force_host_platform_device_count=" + std::to_string(cpu_devices);
}

bool is_jax_by_variables(const Options& options) {
  return options.profile == Profile::kJax && options.no_python_hook;
}

Environment jax_rank_variables(const JobPlan& plan, const PlannedWorker& worker) {
  return {{"OMPI_MCA_orte_hnp_uri", "ivyrun"},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(plan.world_size)},
          {"OMPI_COMM_WORLD_RANK", std::to_string(worker.rank)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(worker.local_rank)}};
}

}  // namespace ivy
