// SPDX-License-Identifier: Apache-2.0
// Assigns accelerators and cores to workers, and reports problems with that. Pure; thread: any.
#pragma once

#include <vector>

#include "launcher/plan/plan_context.h"
#include "proto/contract/env.h"

namespace ivy {

// Returns indices into the host's HostFacts::devices. Simulated hosts divide the machine's
// accelerators, and the first ones get the remainder; with fewer accelerators than hosts, each host
// shares one accelerator with others.
std::vector<int> devices_of_host(const Options& options, const std::vector<HostAnswer>& answers,
                                 std::size_t index);

// Returns the number of workers that can have separate accelerators on this host: devices_of_host()
// divided by --gpus_per_proc.
int device_slots(const Options& options, const std::vector<HostAnswer>& answers, std::size_t index);

// Fills in the members of the plan that job_plan.h attributes to this file, for hosts whose workers
// are placed and numbered. May reject the plan (IVY-P011, P017, P021) or warn (P011, P017, P018).
void plan_devices(PlanContext& context);

// Explains why a host shows no accelerators, or fewer than it has, as the cause in a message; empty
// if no reason is known.
std::string hiding_reason(const HostFacts& facts);

// Adds the request for accelerators and cores to a host's hello: masks from -x, which apply on
// every host as if they were set there, and the layout of the cores if workers are bound by it.
// Invalid -x values are rejected elsewhere.
void add_device_request(const Options& options, const Environment& caller, Hello& hello);

}  // namespace ivy
