// SPDX-License-Identifier: Apache-2.0
// The hosts that a scheduler has given us, whichever scheduler it is. Another scheduler is one more
// source in allocation.cc. Pure but for the reader that is handed in; thread: any.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/slurm/slurm_allocation.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Allocation {
  std::string name;                // "Slurm job 1234", for people.
  std::vector<std::string> hosts;  // In the scheduler's order; each once, at least one.
  std::optional<std::size_t> own;  // The host that we are on; none: not one of them, or not said.
  // Set only in a Slurm allocation. Its hosts are reached by a step of the scheduler, hosts of
  // other schedulers by the usual transports.
  std::optional<SlurmAllocation> slurm;
};

Allocation allocation_of(const SlurmAllocation& slurm);

// Reads a file that a variable names.
using AllocationReader = std::function<Result<std::string>(const std::string& path)>;

// Asks each scheduler's variables in turn. Nothing: none says that we are in an allocation. An
// error: one says so, but what it says cannot be true.
Result<std::optional<Allocation>> find_allocation(const Environment& environment,
                                                  const AllocationReader& read);

}  // namespace ivy
