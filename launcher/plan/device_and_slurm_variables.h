// SPDX-License-Identifier: Apache-2.0
// The variables that select a worker's accelerators, and the SLURM_* variables of its rank:
// libraries that read those (JAX, Lightning, MPI libraries) must see this job, not the batch script
// or ivyrun's own step. All other variables are in worker_environment.h. Pure; thread: any.
#pragma once

#include <string_view>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "proto/contract/env.h"

namespace ivy {

// Returns the variables shared by all workers of this host: SLURM_NTASKS, SLURM_STEP_*,
// SLURM_NODEID, ...
Environment slurm_host_variables(const JobPlan& plan, const PlannedHost& host);

// Returns SLURM_PROCID and SLURM_LOCALID, which differ between ranks.
Environment slurm_rank_variables(const PlannedWorker& worker);

// Returns true for SLURM_JOB_*, SLURM_ARRAY_* and other variables with the same value on every host
// of the allocation; they are sent to hosts if the transport does not pass them on. Returns false
// for variables of a single node (its devices, its name).
bool is_of_slurm_job(std::string_view name);

// Returns defaults for all workers of a host: the order of device numbers and, if the host has only
// some of its machine's accelerators or has them in another order, a mask.
Environment host_device_variables(const PlannedHost& host, const HostFacts& facts);

// Returns the variables of one worker: IVY_DEVICE_*; a mask and LOCAL_RANK 0 if it sees only its
// own accelerators; JAX_LOCAL_DEVICE_IDS; and the variables of --device-env. by_uuid: names devices
// by UUID, because the caller's CUDA_DEVICE_ORDER would change the meaning of numbers.
Environment worker_device_variables(const Options& options, const PlannedHost& host,
                                    const PlannedWorker& worker, const HostFacts& facts,
                                    bool by_uuid);

}  // namespace ivy
