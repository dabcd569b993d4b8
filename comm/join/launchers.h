// SPDX-License-Identifier: Apache-2.0
// Reads the variables that launchers other than ivyrun set for this process. Pure; thread: any.
//
//   key        rank                   world size              ranks of this host
//   torchrun   RANK (and LOCAL_RANK)  WORLD_SIZE              LOCAL_WORLD_SIZE
//   openmpi    OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE    OMPI_COMM_WORLD_LOCAL_SIZE
//   mpich      PMI_RANK               PMI_SIZE                MPI_LOCALNRANKS
//   slurm      SLURM_PROCID           SLURM_STEP_NUM_TASKS    SLURM_STEP_TASKS_PER_NODE
//
// Slurm counts only if SLURM_STEP_ID is set: a batch script has SLURM_PROCID=0 but is not a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;
inline std::string value_of(const EnvironmentLookup& environment, std::string_view name) {
  return environment(name).value_or("");
}

// One source's claim that this is rank R of N, with the variables that say so.
struct LauncherClaim {
  std::string key;       // "torchrun", as in IVY_LAUNCHER.
  std::string name;      // "Open MPI's mpirun"
  std::string settings;  // "RANK=1, WORLD_SIZE=4"
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::optional<std::uint32_t> local_size;  // Empty if unknown.

  std::string text() const { return name + " (" + settings + ")"; }
};

struct LauncherClaims {
  std::vector<LauncherClaim> complete;  // The most specific first.
  // Sources that are only partly present, in the same order. Each error names the variables that
  // are set and those that are missing.
  std::vector<Error> incomplete;
};

// `only` is a key, or empty for all launchers.
LauncherClaims read_launchers(const EnvironmentLookup& environment, std::string_view only);

// Returns whether it is one of the keys above, ivyrun's or "none".
bool is_launcher_key(std::string_view key);

// Returns whether both claims may be true: they are equal, or one launcher has started the other.
// Then the outer one has one task per host (srun starts a torchrun on each) or only one task. All
// other differences are contradictions.
bool may_both_hold(const LauncherClaim& inner, const LauncherClaim& outer);

// Returns, for example, "node01" for "node[01-03,7],login"; empty if there is none.
std::string first_host(std::string_view nodelist);
// Returns the number of tasks on the node with that index, according to a text such as "2(x3),1".
std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index);

}  // namespace ivy::comm
