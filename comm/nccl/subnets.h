// SPDX-License-Identifier: Apache-2.0
// Finds networks over which NCCL of all hosts can connect, from the interfaces of the ranks. Pure.
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl/rank_facts.h"

namespace ivy::comm::nccl {

// Returns true for an interface that leads nowhere outside the host; NCCL uses such interfaces
// last.
bool is_inner(const Interface& interface);

struct CommonSubnet {
  std::string subnet;              // Such as "10.77.0.0/24".
  std::vector<std::string> names;  // Its interfaces' names, each once, in the order of the ranks.
};

// Returns the subnets in which every host (every network namespace) has an interface, in the order
// of the first rank's interfaces. Excludes interfaces that NCCL uses last (docker, lo, virbr):
// their addresses are equal on all hosts without being one network.
std::vector<CommonSubnet> common_subnets(const std::vector<RankFacts>& ranks);

}  // namespace ivy::comm::nccl
