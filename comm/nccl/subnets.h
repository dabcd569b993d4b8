// SPDX-License-Identifier: Apache-2.0
// The networks that ranks have interfaces in: where NCCL of all hosts would reach each other.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl/rank_facts.h"

namespace ivy::comm::nccl {

// True if NCCL itself takes the interface last, since it leads nowhere outside the host.
bool is_inner(const Interface& interface);

struct CommonSubnet {
  std::string subnet;              // "10.77.0.0/24"
  std::vector<std::string> names;  // Its interfaces' names, each once, in the order of the ranks.
};

// Returns the subnets in which every host (every network namespace) has an interface, in the order
// of the first rank's interfaces. Excludes interfaces that NCCL uses last (docker, lo, virbr):
// their addresses are equal on all hosts without being one network.
std::vector<CommonSubnet> common_subnets(const std::vector<RankFacts>& ranks);

}  // namespace ivy::comm::nccl
