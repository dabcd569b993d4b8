// SPDX-License-Identifier: Apache-2.0
// Reads the hosts of the Flux instance in which ivyrun was started (`flux alloc`, `flux batch`).
// Flux sets no variable with them; its command knows them. Pure except for the inputs; thread: any.
#pragma once

#include <optional>

#include "launcher/plan/allocation_inputs.h"
#include "launcher/plan/batch_hosts.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Whether we are a task of `flux run` or `flux submit`.
bool is_flux_task(const Environment& environment);

// Returns std::nullopt if FLUX_URI is not set, if it leads to another user's instance (the
// system's, which is not an allocation), and for a task. Returns an error if the flux command fails
// or lists no hosts.
Result<std::optional<BatchHosts>> read_flux_hosts(const Environment& environment,
                                                  AllocationInputs& inputs);

}  // namespace ivy
