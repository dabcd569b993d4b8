// SPDX-License-Identifier: Apache-2.0
#include "comm/join/launchers.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

constexpr std::string_view kKeys[] = {"ivyrun", "torchrun", "openmpi", "mpich", "slurm", "none"};

struct Launcher {
  std::string_view key;
  std::string_view name;
  // All of these must be set for the source to count. The first two are rank and world size.
  std::vector<std::string_view> needed;
  // If one of these is set, the source is present. If empty, one of `needed` suffices.
  std::vector<std::string_view> marks;
  std::string_view local_size;  // Empty if it is determined in another way.
};

std::vector<Launcher> launchers(const EnvironmentLookup& environment) {
  // Before Slurm 20 only SLURM_NTASKS had the number of a step's tasks.
  const std::string_view step_tasks =
      environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return {
      {"torchrun",
       "torchrun",
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
       {"RANK", "WORLD_SIZE"},
       "LOCAL_WORLD_SIZE"},
      {"openmpi",
       "Open MPI's mpirun",
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
       {},
       "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"mpich", "MPICH's mpiexec", {"PMI_RANK", "PMI_SIZE"}, {}, "MPI_LOCALNRANKS"},
      {"slurm",
       "the Slurm step",
       {"SLURM_PROCID", step_tasks, "SLURM_STEP_ID"},
       {"SLURM_STEP_ID"},
       ""},
  };
}

Error incomplete(const Launcher& launcher, const std::vector<std::string>& present,
                 const std::vector<std::string>& absent) {
  return Error{Code::kFailedPrecondition,
               "the variables of " + std::string(launcher.name) + " are incomplete: " +
                   joined(present, ", ") + (present.size() == 1 ? " is" : " are") + " set, " +
                   joined(absent, ", ") + (absent.size() == 1 ? " is" : " are") + " not",
               "set all or none of them, set IVY_LAUNCHER=none for a world of one, or pass rank, "
               "world size and tcp://HOST:PORT to init"};
}

std::optional<std::uint32_t> local_size_of(const Launcher& launcher,
                                           const EnvironmentLookup& environment) {
  if (!launcher.local_size.empty()) {
    return to_number<std::uint32_t>(value_of(environment, launcher.local_size));
  }
  const auto node = to_number<std::uint32_t>(value_of(environment, "SLURM_NODEID"));
  if (!node) return std::nullopt;
  return tasks_on_node(value_of(environment, "SLURM_STEP_TASKS_PER_NODE"), *node);
}

Result<LauncherClaim> claim_of(const Launcher& launcher, const EnvironmentLookup& environment) {
  std::vector<std::string> present;
  std::vector<std::string> absent;
  const bool is_single = value_of(environment, launcher.needed[1]) == "1";
  for (std::size_t i = 0; i < launcher.needed.size(); ++i) {
    const std::string name(launcher.needed[i]);
    const std::string value = value_of(environment, name);
    // A world of one does not need the address of other ranks.
    if (value.empty() && is_single && name.starts_with("MASTER_")) continue;
    if (value.empty()) {
      absent.push_back(name);
    } else {
      present.push_back(name + "=" + value);
    }
  }
  if (!absent.empty()) return incomplete(launcher, present, absent);
  LauncherClaim claim;
  claim.key = launcher.key;
  claim.name = launcher.name;
  claim.settings = present[0] + ", " + present[1];
  const auto rank = to_number<std::uint32_t>(value_of(environment, launcher.needed[0]));
  const auto size = to_number<std::uint32_t>(value_of(environment, launcher.needed[1]));
  if (!rank || !size) {
    return Error{Code::kFailedPrecondition,
                 std::string(launcher.name) + " set " + claim.settings + ", which is not a number",
                 "correct it, or unset both"};
  }
  if (*rank >= *size) {
    return Error{Code::kFailedPrecondition,
                 std::string(launcher.name) + " set rank " + std::to_string(*rank) +
                     " in a world of " + std::to_string(*size) + " (" + claim.settings + ")",
                 "ranks are counted from 0; correct it, or unset both"};
  }
  claim.rank = *rank;
  claim.world_size = *size;
  claim.local_size = local_size_of(launcher, environment);
  return claim;
}

}  // namespace

LauncherClaims read_launchers(const EnvironmentLookup& environment, std::string_view only) {
  LauncherClaims claims;
  for (const Launcher& launcher : launchers(environment)) {
    if (!only.empty() && launcher.key != only) continue;
    const auto& marks = launcher.marks.empty() ? launcher.needed : launcher.marks;
    const bool is_meant = std::any_of(marks.begin(), marks.end(), [&](std::string_view name) {
      return !value_of(environment, name).empty();
    });
    if (!is_meant) continue;
    Result<LauncherClaim> claim = claim_of(launcher, environment);
    if (claim.ok()) {
      claims.complete.push_back(std::move(claim).value());
    } else {
      claims.incomplete.push_back(claim.error());
    }
  }
  return claims;
}

bool is_launcher_key(std::string_view key) {
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

bool may_both_hold(const LauncherClaim& inner, const LauncherClaim& outer) {
  if (inner.rank == outer.rank && inner.world_size == outer.world_size) return true;
  return outer.world_size == 1 || outer.local_size == 1U;
}

std::string first_host(std::string_view nodelist) {
  std::string host;
  bool is_inside = false;
  bool is_taken = false;  // The first number in the brackets is complete.
  for (const char c : nodelist) {
    if (!is_inside && c == ',') break;
    if (c == '[' || c == ']') {
      is_inside = c == '[';
      is_taken = false;
    } else if (is_inside && (c == '-' || c == ',')) {
      is_taken = true;
    } else if (!is_taken) {
      host += c;
    }
  }
  return host;
}

std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index) {
  std::uint64_t nodes = 0;
  while (!counts.empty()) {
    const std::string_view part = take_part(counts, ',');
    const std::size_t times = std::min(part.find("(x"), part.size());
    const auto tasks = to_number<std::uint32_t>(part.substr(0, times));
    std::optional<std::uint32_t> repeated = 1;
    if (times < part.size()) {
      if (!part.ends_with(')')) return std::nullopt;
      repeated = to_number<std::uint32_t>(part.substr(times + 2, part.size() - times - 3));
    }
    if (!tasks || !repeated) return std::nullopt;
    nodes += *repeated;
    if (index < nodes) return tasks;
  }
  return std::nullopt;
}

}  // namespace ivy::comm
