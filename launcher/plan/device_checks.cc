// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/device_checks.h"

#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"

namespace ivy {
namespace {

std::string requested_text(const SlurmAllocation& allocation) {
  if (!allocation.gpus_requested.empty())
    return allocation.name() + " was allocated with " + allocation.gpus_requested;
  if (allocation.gpus_here)
    return "SLURM_GPUS_ON_NODE=" + std::to_string(*allocation.gpus_here) + " in " +
           allocation.name();
  return allocation.name();
}

struct Hidden {
  // Hosts that show fewer devices to their task of the step than the job has there.
  std::vector<std::string> names;
  const PlannedHost* too_few = nullptr;  // A host with more workers than visible devices.
  std::size_t visible = 0;               // Devices of that host, or else of the first of `names`.
  int allocated = 0;
};

Hidden hidden_devices(const SlurmAllocation& allocation, const std::vector<HostAnswer>& answers,
                      const JobPlan& plan) {
  Hidden hidden;
  if (allocation.gpus_bound_by.empty()) return hidden;
  for (const PlannedHost& host : plan.hosts) {
    const std::size_t visible = answers[host.host_index].facts.accelerators();
    const int allocated = allocation.gpus_of(host.name).value_or(0);
    if (visible == 0 || static_cast<int>(visible) >= allocated) continue;
    hidden.names.push_back(host.name);
    const bool is_too_few = hidden.too_few == nullptr && visible < host.workers.size();
    if (is_too_few) hidden.too_few = &host;
    if (!is_too_few && hidden.names.size() > 1) continue;
    hidden.visible = visible;
    hidden.allocated = allocated;
  }
  return hidden;
}

Diagnostic text_of(const Hidden& hidden, const SlurmAllocation& allocation) {
  const std::string visible = std::to_string(hidden.visible);
  const std::string& binding = allocation.gpus_bound_by;
  Diagnostic text;
  text.severity = Severity::kWarning;
  text.id = "IVY-P019";
  text.what = binding + " leaves " + visible + " of " + std::to_string(hidden.allocated) +
              " devices visible";
  text.where = fold_host_names(hidden.names);
  text.cause = requested_text(allocation) +
               ": Slurm shows each task of a step its own devices and hides the others";
  text.fix = "ask for --gpus-per-node N with --ntasks-per-node 1, without " + binding +
             ": ivyrun assigns a device to each worker";
  return text;
}

// Turns the message into a rejection: without --oversubscribe a shortage stops the job.
Diagnostic rejection_of(Diagnostic text, const Hidden& hidden) {
  text.severity = Severity::kError;
  text.what = std::to_string(hidden.too_few->workers.size()) + " workers, but " + text.what;
  // One host suffices, since the same was requested on all of them.
  text.where = hidden.too_few->name;
  text.fix += "\nor --nproc-per-node " + std::to_string(hidden.visible) +
              "\nor use --oversubscribe to share the visible devices between workers";
  text.exit_code = kExitRejected;
  return text;
}

}  // namespace

void check_allocated_devices(PlanContext& context) {
  if (!context.options.allocation) return;
  JobPlan& plan = context.plan;
  const SlurmAllocation& allocation = *context.options.allocation;
  const Hidden hidden = hidden_devices(allocation, context.answers, plan);
  if (hidden.too_few != nullptr && !context.options.oversubscribe)
    return context.rejections.push_back(rejection_of(text_of(hidden, allocation), hidden));
  if (!hidden.names.empty()) plan.warnings.push_back(text_of(hidden, allocation));
  const bool has_devices =
      !allocation.gpus_requested.empty() || allocation.gpus_here.value_or(0) > 0;
  std::vector<std::string> without;
  for (const PlannedHost& host : plan.hosts)
    if (context.facts(host).accelerators() == 0) without.push_back(host.name);
  if (!has_devices || without.empty()) return;
  context.warn({.id = "IVY-P020",
                .what = "the job has devices, but ivyrun finds none",
                .where = fold_host_names(without),
                .cause = requested_text(allocation),
                .fix = "--nproc-per-node N starts N workers regardless of the devices found"});
}

}  // namespace ivy
