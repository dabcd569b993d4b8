// SPDX-License-Identifier: Apache-2.0
// MASTER_ADDR if the user specified it (--master-addr as an address or a name), and checks that
// every host can use the chosen address. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/plan_context.h"

namespace ivy {

// Returns the numeric address for --master-addr on the first host. Returns std::nullopt if the flag
// names the first host itself, whose address is then chosen as without the flag, and an empty
// string after rejecting the flag (IVY-P022).
//
// The first host must have the address, since the job's store listens there. With --no-store rank
// 0's framework listens, possibly behind an address that the host itself does not know; then only
// addresses of other hosts of the job are rejected. plan.hosts is final.
std::optional<std::string> written_master(PlanContext& context);

// Returns true for addresses that a check from another host would wrongly accept: a loopback
// address, which reaches the host itself, and a link-local IPv6 address, whose scope is a name
// local to each host. (Link-local IPv4 is routed like any other address and can be checked.)
bool is_unreachable_from_other_hosts(const std::string& address);
// Returns true if all hosts of the plan are one machine, as simulated hosts are.
bool is_one_machine(const std::vector<HostAnswer>& answers, const JobPlan& plan);

// Returns true if one of the host's interfaces has the address, or if the host did not report its
// addresses.
bool owns_address(const HostFacts& facts, const std::string& address);
// Returns another machine of the job that has the same address, as every host has docker0's; null
// if none.
const PlannedHost* other_owner(const std::vector<HostAnswer>& answers, const JobPlan& plan,
                               const std::string& address);

// Rejects a plan.master_address that some host cannot use.
void check_master(PlanContext& context);

}  // namespace ivy
