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
  std::optional<int> memory_node;  // If all of them belong to one node, and there are several.
  int sharers = 1;                 // Workers with the same processors.
  bool operator==(const CoreShare&) const = default;
};

// near_nodes: for each worker, in order of local rank, the NUMA node of its accelerators; -1: it
// has none, or the node is unknown. Such workers are laid over the nodes in blocks, as many on each
// as its cores allow. Then
//
//   kCore    workers of a node divide its cores evenly, in order and with all hardware threads of a
//            core together; with more workers than cores, neighbours share one
//   kL3      each gets all cores behind one level-3 cache of its node, caches in turn
//   kNuma    all cores of its node
//   kSocket  all cores of the processor package that its node is on
//
// cores: what the host may use. One share for each worker; without cores, or for kAuto and kNone,
// empty ones.
std::vector<CoreShare> split_cores(const std::vector<CoreFacts>& cores, BindChoice unit,
                                   const std::vector<int>& near_nodes);

}  // namespace ivy
