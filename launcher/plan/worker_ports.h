// SPDX-License-Identifier: Apache-2.0
// Ports that each host reserves for its workers: with some frameworks every rank listens, and knows
// the addresses of all others. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/environment_inputs.h"
#include "launcher/plan/plan_context.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns the ports to reserve on a host; none for most jobs.
PortWish worker_port_wish(const Options& options);

// Rejects a plan with hosts that could not reserve as many ports as requested, or with fewer ranks
// than --tf-roles names.
void check_worker_ports(PlanContext& context);

// Returns the address at which this host's workers accept connections from other hosts: numeric,
// without a port.
std::string host_address(const EnvironmentInputs& inputs, const PlannedHost& host);

// Returns "10.0.0.1:4711" for each rank, in rank order; empty if no ports were reserved.
std::vector<std::string> rank_addresses(const EnvironmentInputs& inputs);

}  // namespace ivy
