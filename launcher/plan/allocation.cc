#include "launcher/plan/allocation.h"

namespace ivy {
namespace {

using Source = Result<std::optional<Allocation>> (*)(const Environment& environment);

Result<std::optional<Allocation>> from_slurm(const Environment& environment) {
  const std::optional<SlurmAllocation> slurm = IVY_TRY(read_allocation(environment));
  if (!slurm) return std::optional<Allocation>();
  return std::optional<Allocation>(allocation_of(*slurm));
}

constexpr Source kSources[] = {from_slurm};

}  // namespace

Allocation allocation_of(const SlurmAllocation& slurm) {
  Allocation allocation{slurm.name(), slurm.hosts, std::nullopt, slurm};
  if (slurm.node_id) allocation.own = static_cast<std::size_t>(*slurm.node_id);
  return allocation;
}

Result<std::optional<Allocation>> find_allocation(const Environment& environment) {
  for (const Source source : kSources) {
    Result<std::optional<Allocation>> found = source(environment);
    if (!found.ok() || *found) return found;
  }
  return std::optional<Allocation>();
}

}  // namespace ivy
