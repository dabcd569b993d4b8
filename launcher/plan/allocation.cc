// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/allocation.h"

#include <utility>

#include "launcher/plan/batch_hosts.h"

namespace ivy {

Allocation allocation_of(const SlurmAllocation& slurm) {
  Allocation allocation{slurm.name(), slurm.hosts, std::nullopt, slurm};
  if (slurm.node_id) allocation.own = static_cast<std::size_t>(*slurm.node_id);
  return allocation;
}

Result<std::optional<Allocation>> find_allocation(const Environment& environment,
                                                  AllocationInputs& inputs) {
  const std::optional<SlurmAllocation> slurm = IVY_TRY(read_slurm_allocation(environment));
  if (slurm) return std::optional<Allocation>(allocation_of(*slurm));
  // A Flux instance may run in a job of another scheduler and have only some of its hosts, so it
  // precedes those. (It removes Slurm's variables.) A task of its own jobs has one host: this one.
  std::optional<BatchHosts> batch = IVY_TRY(read_flux_hosts(environment, inputs));
  if (!batch && !is_flux_task(environment)) batch = IVY_TRY(read_batch_hosts(environment, inputs));
  if (!batch) return std::optional<Allocation>();
  return std::optional<Allocation>(
      Allocation{std::move(batch->name), std::move(batch->hosts), std::nullopt, std::nullopt});
}

}  // namespace ivy
