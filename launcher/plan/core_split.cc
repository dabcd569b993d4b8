// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/core_split.h"

#include <algorithm>
#include <map>

namespace ivy {
namespace {

using Cores = std::vector<const CoreFacts*>;

// Returns the processors of these cores.
CoreList processors_of(const Cores& cores) {
  CoreList all;
  for (const CoreFacts* core : cores) all = joined_cores(all, parse_core_list(core->processors()));
  return all;
}

// Groups workers by their node, in order. A worker without a node goes to the node with the most
// cores left per worker, so that no worker gets fewer cores than necessary.
std::map<int, std::vector<std::size_t>> workers_by_node(const std::map<int, Cores>& nodes,
                                                        const std::vector<int>& near_nodes) {
  std::map<int, std::size_t> counts;
  std::size_t without_node = 0;
  for (const int node : near_nodes) ++(nodes.contains(node) ? counts[node] : without_node);
  std::vector<int> assigned;
  for (; without_node > 0; --without_node) {
    const auto largest =
        std::max_element(nodes.begin(), nodes.end(), [&counts](const auto& one, const auto& other) {
          return one.second.size() * (counts[other.first] + 1) <
                 other.second.size() * (counts[one.first] + 1);
        });
    ++counts[largest->first];
    assigned.push_back(largest->first);
  }
  std::sort(assigned.begin(), assigned.end());
  std::map<int, std::vector<std::size_t>> workers;
  auto next = assigned.begin();
  for (std::size_t i = 0; i < near_nodes.size(); ++i)
    workers[nodes.contains(near_nodes[i]) ? near_nodes[i] : *next++].push_back(i);
  return workers;
}

// Returns the part of `cores` for worker `index` of `count`; parts differ by at most one core.
Cores even_part(const Cores& cores, std::size_t index, std::size_t count) {
  const std::size_t begin = index * cores.size() / count;
  const std::size_t end = std::max(begin + 1, (index + 1) * cores.size() / count);
  return Cores(cores.begin() + static_cast<std::ptrdiff_t>(begin),
               cores.begin() + static_cast<std::ptrdiff_t>(end));
}

Cores one_cache(const Cores& cores, std::size_t index, std::size_t count) {
  std::map<int, Cores> caches;
  for (const CoreFacts* core : cores) caches[core->l3()].push_back(core);
  // With fewer workers than caches, spread them; otherwise assign the caches in turn.
  const std::size_t chosen =
      count <= caches.size() ? index * caches.size() / count : index % caches.size();
  return std::next(caches.begin(), static_cast<std::ptrdiff_t>(chosen))->second;
}

Cores one_package(const std::vector<CoreFacts>& all, const Cores& of_node) {
  Cores cores;
  for (const CoreFacts& core : all)
    if (core.package() == of_node.front()->package()) cores.push_back(&core);
  return cores;
}

void count_sharers(std::vector<CoreShare>& shares) {
  std::map<CoreList, int> counts;
  for (const CoreShare& share : shares) ++counts[share.processors];
  for (CoreShare& share : shares) share.sharers = counts[share.processors];
}

}  // namespace

std::vector<CoreShare> split_cores(const std::vector<CoreFacts>& cores, BindChoice unit,
                                   const std::vector<int>& near_nodes) {
  std::vector<CoreShare> shares(near_nodes.size());
  if (cores.empty() || unit == BindChoice::kAuto || unit == BindChoice::kNone) return shares;
  std::map<int, Cores> nodes;
  for (const CoreFacts& core : cores) nodes[core.numa_node()].push_back(&core);
  for (const auto& [node, workers] : workers_by_node(nodes, near_nodes)) {
    const Cores& of_node = nodes.at(node);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      CoreShare& share = shares[workers[i]];
      const Cores chosen = unit == BindChoice::kCore     ? even_part(of_node, i, workers.size())
                           : unit == BindChoice::kL3     ? one_cache(of_node, i, workers.size())
                           : unit == BindChoice::kSocket ? one_package(cores, of_node)
                                                         : of_node;
      share.processors = processors_of(chosen);
      const bool is_one_node =
          std::all_of(chosen.begin(), chosen.end(),
                      [node = node](const CoreFacts* core) { return core->numa_node() == node; });
      if (is_one_node && nodes.size() > 1 && node >= 0) share.memory_node = node;
    }
  }
  count_sharers(shares);
  return shares;
}

}  // namespace ivy
