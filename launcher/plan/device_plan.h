// SPDX-License-Identifier: Apache-2.0
// Accelerators and cores in the plan: which of them each worker gets, and what is wrong with that.
// Pure; thread: any.
#pragma once

#include <vector>

#include "launcher/plan/plan_context.h"
#include "proto/contract/env.h"

namespace ivy {

// Indices into the host's HostFacts::devices. Pretended hosts divide the machine's accelerators,
// the first take the rest; where there are fewer accelerators than hosts, they share them one by
// one.
std::vector<int> devices_of_host(const Options& options, const std::vector<HostAnswer>& answers,
                                 std::size_t index);

// How many workers have accelerators of their own on this host: devices_of_host by --gpus_per_proc.
int device_places(const Options& options, const std::vector<HostAnswer>& answers,
                  std::size_t index);

// Fills what plan.h says is filled here, for hosts whose workers are placed and numbered. Refuses
// (IVY-P011, P017, P021) and warns (P011, P017, P018).
void plan_devices(PlanContext& context);

// Why a host shows no accelerator, or fewer than it has, for a message's cause; empty: no reason is
// known.
std::string hiding_reason(const HostFacts& facts);

// Adds the request for accelerators and cores to a host's hello: masks from -x, which apply on
// every host as if they were set there, and the layout of the cores if workers are bound by it.
// Invalid -x values are rejected elsewhere.
void add_device_request(const Options& options, const Environment& caller, Hello& hello);

}  // namespace ivy
