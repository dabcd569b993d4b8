// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/allocation.h"

#include "launcher/plan/batch_hosts.h"

namespace ivy {
namespace {

using Source = Result<std::optional<Allocation>> (*)(const Environment& environment,
                                                     const AllocationReader& read);

Result<std::optional<Allocation>> from_slurm(const Environment& environment,
                                             const AllocationReader&) {
  const std::optional<SlurmAllocation> slurm = IVY_TRY(read_slurm_allocation(environment));
  if (!slurm) return std::optional<Allocation>();
  return std::optional<Allocation>(allocation_of(*slurm));
}

Result<std::optional<Allocation>> from_others(const Environment& environment,
                                              const AllocationReader& read) {
  const std::optional<BatchHosts> batch = IVY_TRY(read_batch_hosts(environment, read));
  if (!batch) return std::optional<Allocation>();
  return std::optional<Allocation>(
      Allocation{batch->name, batch->hosts, std::nullopt, std::nullopt});
}

constexpr Source kSources[] = {from_slurm, from_others};

}  // namespace

Allocation allocation_of(const SlurmAllocation& slurm) {
  Allocation allocation{slurm.name(), slurm.hosts, std::nullopt, slurm};
  if (slurm.node_id) allocation.own = static_cast<std::size_t>(*slurm.node_id);
  return allocation;
}

Result<std::optional<Allocation>> find_allocation(const Environment& environment,
                                                  const AllocationReader& read) {
  for (const Source source : kSources) {
    Result<std::optional<Allocation>> found = source(environment, read);
    if (!found.ok() || *found) return found;
  }
  return std::optional<Allocation>();
}

}  // namespace ivy
