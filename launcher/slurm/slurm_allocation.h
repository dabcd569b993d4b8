// SPDX-License-Identifier: Apache-2.0
// Reads Slurm's variables of the allocation that ivyrun was started in. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// The step whose task we are. The batch script of sbatch and the shell of salloc are not steps,
// though Slurm gives a batch script SLURM_PROCID=0.
struct SlurmStep {
  std::string id;  // SLURM_STEP_ID
  int tasks = 1;   // SLURM_STEP_NUM_TASKS
  int task = 0;    // SLURM_PROCID
};

struct SlurmAllocation {
  std::string job_id;        // SLURM_JOB_ID; of an array's element its own.
  std::string array_job_id;  // Empty if the job is not an element of an array.
  std::string array_task_id;
  std::string nodelist;            // SLURM_JOB_NODELIST as Slurm wrote it.
  std::vector<std::string> hosts;  // In Slurm's order; each once, at least one.
  std::vector<int> gpus;           // Per host, where --gpus-per-task says it; empty: not said.
  std::string node_name;           // SLURMD_NODENAME: the node we are on; empty in salloc's shell.
  std::optional<int> node_id;      // Its index in hosts; none: not one of them, or not said.
  std::optional<int> gpus_here;    // SLURM_GPUS_ON_NODE
  std::string gpus_asked;  // "--gpus-per-node 4", as it was asked for; empty: not, or not said.
  // The option by which Slurm gives each task of a step its own devices: "--gpus-per-task"; empty:
  // it does not.
  std::string gpus_bound_by;
  std::optional<std::int64_t> end_unix_s;  // SLURM_JOB_END_TIME, from Slurm 23.02 on.
  std::optional<SlurmStep> step;

  // "Slurm job 1234", "Slurm job 1234 (7_2)".
  std::string name() const;
  // How many devices the job has on that host. Nothing: not said.
  std::optional<int> gpus_of(std::string_view host) const;
};

// Nothing: no variable says that we are in an allocation. InvalidArgument: they say so, but what
// they say cannot be true (no node list, one of another grammar, a host twice, counts for other
// hosts); FailedPrecondition: an allocation of several components (a heterogeneous job).
Result<std::optional<SlurmAllocation>> read_allocation(const Environment& environment);

}  // namespace ivy
