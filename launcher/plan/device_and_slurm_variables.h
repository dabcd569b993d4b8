// SPDX-License-Identifier: Apache-2.0
// The variables that select a worker's accelerators, and the SLURM_* variables of its rank:
// libraries that read those (JAX, Lightning, MPI libraries) must see this job and not the batch
// script or ivyrun's own step. The other variables are in worker_environment.h. Pure; thread: any.
#pragma once

#include <string_view>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "proto/contract/env.h"

namespace ivy {

// The variables that all workers of this host share: SLURM_NTASKS, SLURM_STEP_*, SLURM_NODEID, ...
Environment slurm_host_variables(const JobPlan& plan, const PlannedHost& host);

// SLURM_PROCID and SLURM_LOCALID, which differ between ranks.
Environment slurm_rank_variables(const PlannedWorker& worker);

// True of every host of the allocation, so that it is passed on where a transport does not do it:
// SLURM_JOB_*, SLURM_ARRAY_* and the like. Not what speaks of one node (its devices, its name).
bool is_of_slurm_job(std::string_view name);

// For all workers of a host, unless the caller has a value: the order of numbers, and what a
// pretended host leaves of its machine's accelerators.
Environment host_device_variables(const PlannedHost& host, const HostFacts& facts);

// For one worker: IVY_DEVICE_*, its own mask and LOCAL_RANK 0 where it sees its own accelerators
// alone, JAX_LOCAL_DEVICE_IDS, and the variables of --device-env. by_uuid: numbers would be counted
// in another order (CUDA_DEVICE_ORDER is the caller's).
Environment worker_device_variables(const Options& options, const PlannedHost& host,
                                    const PlannedWorker& worker, const HostFacts& facts,
                                    bool by_uuid);

}  // namespace ivy
