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

// The step in which we are a task. The batch script of sbatch and the shell of salloc are not
// steps, though Slurm gives a batch script SLURM_PROCID=0.
struct SlurmStep {
  std::string id;  // SLURM_STEP_ID
  int tasks = 1;   // SLURM_STEP_NUM_TASKS
  int task = 0;    // SLURM_PROCID
};

struct SlurmAllocation {
  std::string job_id;        // SLURM_JOB_ID; each element of an array has a different one.
  std::string array_job_id;  // Empty if the job is not an element of an array.
  std::string array_task_id;
  std::string nodelist;            // SLURM_JOB_NODELIST as Slurm wrote it.
  std::vector<std::string> hosts;  // In Slurm's order; each once, at least one.
  std::vector<int> gpus;           // Per host, if --gpus-per-task specifies it; empty if unknown.
  std::string node_name;  // SLURMD_NODENAME: the node on which we run; empty in salloc's shell.
  std::optional<int> node_id;    // Its index in hosts; empty if it is not one of them or unknown.
  std::optional<int> gpus_here;  // SLURM_GPUS_ON_NODE
  std::string gpus_requested;    // "--gpus-per-node 4", as requested; empty if not, or unknown.
  // The option with which Slurm gives each task of a step separate devices: "--gpus-per-task";
  // empty if there is none.
  std::string gpus_bound_by;
  std::optional<std::int64_t> end_unix_s;  // SLURM_JOB_END_TIME, from Slurm 23.02 on.
  std::optional<SlurmStep> step;

  // Returns "Slurm job 1234" or "Slurm job 1234 (7_2)".
  std::string name() const;
  // Returns the number of devices that the job has on that host; std::nullopt if unknown.
  std::optional<int> gpus_of(std::string_view host) const;
};

// Whether a variable shows an allocation, which may be invalid.
bool is_in_slurm(const Environment& environment);

// Returns std::nullopt if no variable shows an allocation. Returns InvalidArgument if the variables
// are invalid or contradict each other (no node list, one of another grammar, a duplicate host,
// counts for other hosts), and FailedPrecondition for an allocation of several components (a
// heterogeneous job).
Result<std::optional<SlurmAllocation>> read_slurm_allocation(const Environment& environment);

}  // namespace ivy
