// SPDX-License-Identifier: Apache-2.0
// Assigns processors to the workers of a host. Pure; thread: any.
#pragma once

#include <optional>
#include <vector>

#include "launcher/options/options.h"
#include "proto/contract/core_list.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct CoreShare {
  CoreList processors;
  std::optional<int> memory_node;  // Set if they belong to one of several nodes.
  int sharers = 1;                 // Workers with the same processors.
  bool operator==(const CoreShare&) const = default;
};

// near_nodes: for each worker, by local rank, the NUMA node of its accelerators, or -1 if it has
// none or the node is unknown. Workers without a node are assigned to the nodes with the most cores
// left, in blocks. Then
//
//   kCore    the workers of a node divide its cores evenly and in order, always with all hardware
//            threads of a core; with more workers than cores, neighbours share a core
//   kL3      each gets all cores of one level-3 cache of its node, caches in turn
//   kNuma    all cores of its node
//   kSocket  all cores of the processor package that contains its node
//
// cores: the cores that the host may use. Returns one share per worker; the shares are empty if
// there are no cores, and for kAuto and kNone.
std::vector<CoreShare> split_cores(const std::vector<CoreFacts>& cores, BindChoice unit,
                                   const std::vector<int>& near_nodes);

}  // namespace ivy
