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

// Returns true if the allocation is not used: for simulated hosts, for this machine only
// (--transport local), and for named hosts that are reached through ssh or agents (--transport ssh,
// agent).
bool ignores_allocation(const Options& options);

// Sets options.hosts to the allocation's hosts, or to those that -H or a hostfile names; sets
// options.allocation or batch_job, and options.host_source. Keeps slots that were written; never
// uses a scheduler's counts. is_this_machine(name) tells whether a name is this machine's. Returns
// InvalidArgument if a named host is not in the allocation or is to be reached in another way.
Result<void> place_in_allocation(
    const Allocation& allocation,
    const std::function<bool(const std::string& name)>& is_this_machine, Options& options);

// Returns the error for an ivyrun that was started as one of several tasks of a step (`srun -n 8
// ivyrun ...`), each of which would start the whole job. `command`: the quoted command line, for
// the corrected line.
Error started_as_tasks_error(const SlurmAllocation& allocation, const std::string& command);

}  // namespace ivy
