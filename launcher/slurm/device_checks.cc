#include "launcher/slurm/device_checks.h"

#include "proto/exit_code.h"

namespace ivy {
namespace {

std::string asked_text(const SlurmAllocation& allocation) {
  if (!allocation.gpus_asked.empty())
    return allocation.name() + " was asked for with " + allocation.gpus_asked;
  if (allocation.gpus_here)
    return "SLURM_GPUS_ON_NODE=" + std::to_string(*allocation.gpus_here) + " in " +
           allocation.name();
  return allocation.name();
}

Diagnostic hidden_devices(const SlurmAllocation& allocation, const PlannedHost& host,
                          std::size_t visible) {
  Diagnostic refusal;
  refusal.id = "IVY-P019";
  refusal.what = std::to_string(host.workers.size()) + " workers, but --gpus-per-task leaves " +
                 std::to_string(visible) + (visible == 1 ? " device" : " devices") + " visible";
  refusal.where = host.name;
  refusal.cause = asked_text(allocation) +
                  ": Slurm shows each task of a step its own devices and hides the others";
  refusal.fix =
      "ask for --gpus-per-node N with --ntasks-per-node 1, without --gpus-per-task: ivyrun gives "
      "each worker its device\nor --nproc-per-node " +
      std::to_string(visible);
  refusal.exit_code = kExitRefused;
  return refusal;
}

}  // namespace

void check_allocated_devices(const Options& options, const std::vector<HostAnswer>& answers,
                             JobPlan& plan, std::vector<Diagnostic>& refusals) {
  if (!options.allocation) return;
  const SlurmAllocation& allocation = *options.allocation;
  const bool has_devices = !allocation.gpus_asked.empty() || allocation.gpus_here.value_or(0) > 0;
  std::vector<std::string> without;
  for (const PlannedHost& host : plan.hosts) {
    const std::size_t visible = answers[host.host_index].facts.accelerators();
    if (visible == 0) without.push_back(host.name);
    if (!allocation.gpus_per_task || visible == 0 || visible >= host.workers.size()) continue;
    // One host says it for all: they were asked for alike.
    refusals.push_back(hidden_devices(allocation, host, visible));
    return;
  }
  if (!has_devices || without.empty()) return;
  Diagnostic warning;
  warning.severity = Severity::kWarning;
  warning.id = "IVY-P020";
  warning.what = "the job has devices, but ivyrun sees none";
  warning.where = fold_host_names(without);
  warning.cause = asked_text(allocation);
  warning.fix = "--nproc-per-node N starts N workers whatever ivyrun sees";
  plan.warnings.push_back(std::move(warning));
}

}  // namespace ivy
