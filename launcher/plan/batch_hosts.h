// SPDX-License-Identifier: Apache-2.0
// Reads the hosts of the job in which ivyrun was started from the variables of PBS, LSF and Grid
// Engine. These hosts are then reached like any others. Slots are parsed but not used: they count
// processors, but there is one worker per accelerator. Pure except for `read`; thread: any.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct BatchHosts {
  std::string name;                // "PBS job 1234.head", for people.
  std::vector<std::string> hosts;  // In the scheduler's order; each once, at least one.
};

// Returns std::nullopt if no variable shows such a job, and InvalidArgument if the list of its
// hosts cannot be read or parsed. `read` reads the file that a variable names.
Result<std::optional<BatchHosts>> read_batch_hosts(
    const Environment& environment,
    const std::function<Result<std::string>(const std::string& path)>& read);

}  // namespace ivy
