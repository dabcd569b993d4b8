// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/node_ranks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// Larger values are better.
using Closeness = std::pair<bool, std::size_t>;

Closeness closeness(const HostStanding& lost, const HostStanding& spare) {
  const bool is_in_domain =
      !lost.nvlink_domain.empty() && lost.nvlink_domain == spare.nvlink_domain;
  return {is_in_domain, shared_switches(lost.network_switch, spare.network_switch)};
}

}  // namespace

std::size_t shared_switches(const std::string& one, const std::string& other) {
  std::string_view left = one;
  std::string_view right = other;
  std::size_t shared = 0;
  while (!left.empty() && !right.empty()) {
    if (take_part(left, '.') != take_part(right, '.')) break;
    ++shared;
  }
  return shared;
}

NodeRanks::NodeRanks(std::size_t nodes) : nodes_(nodes) {
  for (std::size_t node = 0; node < nodes; ++node) nodes_[node].host = node;
}

std::vector<std::size_t> NodeRanks::hosts() const {
  std::vector<std::size_t> hosts;
  for (const Node& node : nodes_) hosts.push_back(node.host);
  return hosts;
}

bool NodeRanks::has(std::size_t host) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [host](const Node& node) { return node.host == host; });
}

void NodeRanks::choose_usable(const std::vector<HostStanding>& all) {
  std::vector<Node> nodes;
  for (std::size_t host = 0; host < all.size() && nodes.size() < nodes_.size(); ++host)
    if (all[host].is_usable) nodes.push_back({host});
  if (nodes.size() == nodes_.size()) nodes_ = std::move(nodes);
}

void NodeRanks::set_workers(const std::vector<std::size_t>& hosts, const std::vector<int>& workers,
                            const std::vector<HostStanding>& all) {
  const auto place_of = [&](std::size_t host) {
    return std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
  };
  const auto is_listed = [&](const Node& node) {
    return place_of(node.host) < static_cast<std::ptrdiff_t>(hosts.size());
  };
  // Usable hosts without workers become spares.
  std::erase_if(nodes_,
                [&](const Node& node) { return !is_listed(node) && all[node.host].is_usable; });
  // Lost hosts keep their places unless the plan has another order, as with --map-by.
  std::ptrdiff_t next = 0;
  const bool has_order = std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return !is_listed(node) || place_of(node.host) == next++;
  });
  if (!has_order)
    std::stable_sort(nodes_.begin(), nodes_.end(), [&](const Node& a, const Node& b) {
      return place_of(a.host) < place_of(b.host);
    });
  for (Node& node : nodes_)
    if (is_listed(node)) node.workers = workers[static_cast<std::size_t>(place_of(node.host))];
}

void NodeRanks::put_last(std::size_t host) {
  std::stable_partition(nodes_.begin(), nodes_.end(),
                        [host](const Node& node) { return node.host != host; });
}

std::vector<HostReplacement> NodeRanks::replace_unusable(const std::vector<HostStanding>& all) {
  std::vector<HostReplacement> replacements;
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    Node& node = nodes_[rank];
    if (all[node.host].is_usable) continue;
    std::optional<std::size_t> best;
    for (std::size_t spare = 0; spare < all.size(); ++spare) {
      if (!all[spare].is_usable || has(spare)) continue;
      if (!best || closeness(all[node.host], all[spare]) > closeness(all[node.host], all[*best]))
        best = spare;
    }
    if (!best) continue;
    replacements.push_back({rank, node.host, *best});
    node.host = *best;
  }
  return replacements;
}

}  // namespace ivy
