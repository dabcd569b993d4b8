// SPDX-License-Identifier: Apache-2.0
// The hosts that a scheduler has allocated to us, for any scheduler; allocation.cc and
// batch_hosts.cc list the schedulers. Pure except for the inputs that are passed in; thread: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/allocation_inputs.h"
#include "launcher/slurm/slurm_allocation.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Allocation {
  std::string name;                // "Slurm job 1234", for people.
  std::vector<std::string> hosts;  // In the scheduler's order; each once, at least one.
  std::optional<std::size_t> own;  // The host on which we run; empty if none of them or unknown.
  // Set only in a Slurm allocation. Its hosts are reached by a step of the scheduler; other
  // schedulers' hosts are reached by the usual transports.
  std::optional<SlurmAllocation> slurm;
};

Allocation allocation_of(const SlurmAllocation& slurm);

// Checks the variables of each scheduler in turn. Returns std::nullopt if none of them shows an
// allocation, and an error if the variables of one contradict each other or are invalid, or if they
// show several hosts without their names.
Result<std::optional<Allocation>> find_allocation(const Environment& environment,
                                                  AllocationInputs& inputs);

}  // namespace ivy
