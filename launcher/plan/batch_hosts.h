// SPDX-License-Identifier: Apache-2.0
// Reads the hosts of the job in which ivyrun was started from the variables of PBS (also below
// PALS), LSF and Grid Engine. These hosts are then reached like any others. Slots are parsed but
// not used: they count processors, but there is one worker per accelerator. Pure except for the
// inputs; thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/allocation_inputs.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct BatchHosts {
  std::string name;                // "PBS job 1234.head", for people.
  std::vector<std::string> hosts;  // In the scheduler's order; each once, at least one.
};

// Returns std::nullopt if no variable shows such a job, and InvalidArgument if the list of its
// hosts cannot be read or parsed, or if the job has several hosts and no list.
Result<std::optional<BatchHosts>> read_batch_hosts(const Environment& environment,
                                                   AllocationInputs& inputs);

// Parses the names in `words`, without repetitions. `origin` is for messages.
Result<std::vector<std::string>> distinct_hosts(const std::vector<std::string>& words,
                                                const std::string& origin);

}  // namespace ivy
