// SPDX-License-Identifier: Apache-2.0
// Selects the hosts of a job that was started in an allocation. Pure; thread: any.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/allocation.h"
#include "proto/contract/status.h"

namespace ivy {

// The allocation is not meant: pretended hosts, this machine alone (--transport local), or hosts
// that are named and reached by ssh or by agents (--transport ssh, agent).
bool passes_allocation_over(const Options& options);

// options.hosts becomes the allocation's hosts, or what -H or a hostfile names of them;
// options.allocation or batch_job, and options.host_source, say so. Written slots stay; a
// scheduler's counts are never used. is_here: is this name this machine? InvalidArgument: a host
// that is named is not in the allocation, or is to be reached in another way.
Result<void> place_in_allocation(const Allocation& allocation,
                                 const std::function<bool(const std::string& name)>& is_here,
                                 Options& options);

// Started as one of several tasks of a step (`srun -n 8 ivyrun ...`): each would start the whole
// job. `command`: the command line, quoted, for the line that is right.
Error started_as_tasks(const SlurmAllocation& allocation, const std::string& command);

}  // namespace ivy
