// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/joined_node_list.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

Diagnostic rejection(const std::string& id, const std::string& what, const std::string& cause,
                     const std::string& fix) {
  return Diagnostic{.id = id, .what = what, .cause = cause, .fix = fix, .exit_code = kExitRejected};
}

std::string value_of(const std::vector<std::pair<std::string, std::string>>& terms,
                     const std::string& name) {
  const auto found = std::find_if(terms.begin(), terms.end(),
                                  [&](const auto& term) { return term.first == name; });
  return found == terms.end() ? "" : found->second;
}

}  // namespace

std::string node_text(int rank, const std::string& host) {
  return "node " + std::to_string(rank) + (host.empty() ? "" : " (" + host + ")");
}

JoinedNodeList::JoinedNodeList(JoiningNode head, int total_nodes, int min_nodes)
    : total_nodes_(total_nodes), min_nodes_(min_nodes) {
  nodes_[head.rank] = std::move(head);
}

std::optional<Diagnostic> JoinedNodeList::compare(const JoiningNode& node) const {
  const JoiningNode& head = nodes_.at(0);
  const std::string node_name = node_text(node.rank, node.host);
  const auto both = [&](const std::string& here, const std::string& there) {
    return node_text(0, head.host) + ": " + here + "\n" + node_name + ": " + there;
  };
  if (node.build != head.build)
    return rejection("IVY-J001", node_name + " runs a different build of ivyrun than node 0",
                     both(head.build, node.build), "install the same ivyrun on every node");
  for (const auto& [name, head_value] : head.terms) {
    const std::string node_value = value_of(node.terms, name);
    if (node_value == head_value) continue;
    return rejection("IVY-J001",
                     node_name + " was started with a different " + name + " than node 0",
                     both(head_value, node_value),
                     "start every node with the same command line; only --node-rank differs");
  }
  return std::nullopt;
}

std::optional<Diagnostic> JoinedNodeList::add(const JoiningNode& node) {
  if (std::optional<Diagnostic> differs = compare(node)) return differs;
  const std::string node_name = node_text(node.rank, node.host) + " at " + node.address;
  if (node.rank < 0 || node.rank >= total_nodes_)
    return rejection(
        "IVY-J002",
        node_name + " is out of range for a job of " + std::to_string(total_nodes_) + " nodes", "",
        "number the nodes from 0 to " + std::to_string(total_nodes_ - 1));
  const auto known = nodes_.find(node.rank);
  if (known != nodes_.end() && known->second.process != node.process)
    return rejection("IVY-J002",
                     "two nodes were started with --node-rank " + std::to_string(node.rank),
                     known->second.host + (node.rank == 0 ? "" : " at " + known->second.address) +
                         "\n" + node.host + " at " + node.address,
                     "give every node a different rank, such as --node-rank $SLURM_NODEID");
  nodes_[node.rank] = node;
  return std::nullopt;
}

std::vector<std::pair<int, std::string>> JoinedNodeList::names() const {
  std::vector<std::pair<int, std::string>> all;
  std::set<std::string> taken;
  for (const auto& [rank, node] : nodes_) {
    std::string name = node.host;
    if (!taken.insert(name).second) name += ".node" + std::to_string(rank);
    taken.insert(name);
    all.emplace_back(rank, name);
  }
  return all;
}

std::string JoinedNodeList::missing_text() const {
  std::vector<std::uint32_t> missing;
  for (int rank = 0; rank < total_nodes_; ++rank)
    if (!nodes_.contains(rank)) missing.push_back(static_cast<std::uint32_t>(rank));
  return (missing.size() == 1 ? "node " : "nodes ") + folded_ranks(missing);
}

Diagnostic nodes_missing(const JoinedNodeList& list, const std::string& where,
                         const std::string& how) {
  std::vector<std::string> here;
  std::string lines;
  for (const auto& [rank, name] : list.names())
    lines += (lines.empty() ? "here: " : ", ") + node_text(rank, name);
  return Diagnostic{
      .id = "IVY-J003",
      .what = list.missing_text() + " did not join within --start-timeout",
      .where = "node 0, listening on " + where,
      .cause = lines,
      .fix = "on each of them: " + how +
             "\nthey must be able to reach this port; or allow more time: --start-timeout 10m",
      .exit_code = kExitHostsNotUp};
}

}  // namespace ivy
