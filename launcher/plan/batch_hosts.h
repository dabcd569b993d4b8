// SPDX-License-Identifier: Apache-2.0
// Reads the hosts of the job in which ivyrun was started from the variables of PBS (also below
// PALS), LSF and Grid Engine, or from Flux, which sets no variable with them, but whose command
// knows them. These hosts are then reached like any others. Slots are parsed but not used: they
// count processors, but there is one worker per accelerator. Pure except for the inputs; thread:
// any.
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

// Returns true for a task of `flux run` or `flux submit`.
bool is_flux_task(const Environment& environment);

// Reads the hosts of the Flux instance in which ivyrun was started (`flux alloc`, `flux batch`).
// Returns std::nullopt if FLUX_URI is not set, if it leads to another user's instance (the
// system's, which is not an allocation), and for a task. Returns an error if the flux command fails
// or lists no hosts.
Result<std::optional<BatchHosts>> read_flux_hosts(const Environment& environment,
                                                  AllocationInputs& inputs);

// Parses the names in `words`, without repetitions. `origin` is for messages.
Result<std::vector<std::string>> distinct_hosts(const std::vector<std::string>& words,
                                                const std::string& origin);

}  // namespace ivy
