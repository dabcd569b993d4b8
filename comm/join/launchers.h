// SPDX-License-Identifier: Apache-2.0
// Reads the variables that launchers other than ivyrun set for this process. Pure; thread: any.
//
//   key        rank                   world size              ranks of this host
//   torchrun   RANK (and LOCAL_RANK)  WORLD_SIZE              LOCAL_WORLD_SIZE
//   openmpi    OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE    OMPI_COMM_WORLD_LOCAL_SIZE
//   mpich      PMI_RANK               PMI_SIZE                MPI_LOCALNRANKS
//   slurm      SLURM_PROCID           SLURM_STEP_NUM_TASKS    SLURM_STEP_TASKS_PER_NODE
//
// Slurm speaks only where SLURM_STEP_ID is set: a batch script has SLURM_PROCID=0 and is no rank.
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

// "who says that this is rank R of N", with the variables that say so.
struct LauncherClaim {
  std::string key;   // "torchrun": for IVY_LAUNCHER.
  std::string name;  // "Open MPI's mpirun"
  std::string said;  // "RANK=1, WORLD_SIZE=4"
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::optional<std::uint32_t> local_size;  // Empty if unknown.

  std::string text() const { return name + " (" + said + ")"; }
};

struct LauncherClaims {
  std::vector<LauncherClaim> complete;  // The most specific first.
  // Sources that are only partly present: names the variables that are there and those that are
  // missing. In the same order.
  std::vector<Error> incomplete;
};

// `only`: a key, or empty for all.
LauncherClaims read_launchers(const EnvironmentLookup& environment, std::string_view only);

// The keys above, ivyrun's and "none".
bool is_launcher_key(std::string_view key);

// Two claims may both be true where one launcher started another: then the outer one has one task
// per host (srun starts a torchrun on each) or one at all. Everything else is a contradiction.
bool may_both_hold(const LauncherClaim& inner, const LauncherClaim& outer);

// "node01" of "node[01-03,7],login"; empty for none.
std::string first_host(std::string_view nodelist);
// How many tasks are on the node of that index by "2(x3),1".
std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index);

}  // namespace ivy::comm
