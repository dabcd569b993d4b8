// SPDX-License-Identifier: Apache-2.0
// The address that workers get as MASTER_ADDR, where the user gave it: --master-addr as an address
// or a name, and whether every host can use what was chosen. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/plan_context.h"

namespace ivy {

// The numeric address that --master-addr stands for, on the first host; nothing: it names the first
// host itself, whose address is then chosen as without the flag; empty: refused (IVY-P022).
//
// The first host must have the address, since the job's store listens there. With --no-store rank
// 0's framework does, which may be reached by an address that the host itself does not know: then
// only another host of the job is refused. plan.hosts is final.
std::optional<std::string> written_master(PlanContext& context);

// A loopback address leads every host to itself, and the check of addresses succeeds there: so
// does a link-local IPv6 address, whose scope is a name of each host's own. (Link-local IPv4 is
// routed as any other address, and is checked as such.) Pretended hosts are one machine.
bool is_unreachable_elsewhere(const std::string& address);
bool is_one_machine(const std::vector<HostAnswer>& answers, const JobPlan& plan);

// True if the host has the address on an interface of its own, or said nothing about its addresses.
bool owns_address(const HostFacts& facts, const std::string& address);
// Another machine of the job that has this address as well, as every host has that of docker0;
// null: none.
const PlannedHost* other_owner(const std::vector<HostAnswer>& answers, const JobPlan& plan,
                               const std::string& address);

// Refuses a plan.master_address that not every host can use.
void check_master(PlanContext& context);

}  // namespace ivy
