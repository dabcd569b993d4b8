// SPDX-License-Identifier: Apache-2.0
// Ports that each host keeps for its workers: some frameworks want every rank to listen, and to
// know where all others do. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/environment_inputs.h"
#include "launcher/plan/plan_context.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// The ports to reserve on a host; none for most jobs.
PortWish worker_port_wish(const Options& options);

// Refuses a plan whose hosts could not keep as many as were asked for, or which has fewer ranks
// than
// --tf-roles names.
void check_worker_ports(PlanContext& context);

// The address at which this host's workers accept connections from other hosts: numeric, without a
// port.
std::string host_address(const EnvironmentInputs& inputs, const PlannedHost& host);

// Returns "10.0.0.1:4711" for each rank, in rank order; empty if no ports were reserved.
std::vector<std::string> rank_addresses(const EnvironmentInputs& inputs);

}  // namespace ivy
