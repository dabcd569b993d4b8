// The variables that tell a worker which accelerators are its own. Pure; thread: any.
#pragma once

#include "launcher/plan/plan.h"
#include "proto/contract/env.h"

namespace ivy {

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
