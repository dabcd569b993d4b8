// SPDX-License-Identifier: Apache-2.0
// The list of the nodes of torchrun mode that have joined: node 0, on which the job's launcher
// runs, and the nodes whose ivyruns have connected to it. Checks that all of them were started for
// the same job in the same way. Pure. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/diagnostic.h"

namespace ivy {

// A node's description of itself, which its ivyrun sends when it joins.
struct JoiningNode {
  int rank = 0;         // --node-rank; 0 for node 0 itself.
  std::string host;     // The host name that the node's system reports.
  std::string address;  // Numeric address of the node, as node 0 sees it.
  std::string process;  // Distinguishes two ivyruns that claim the same rank.
  std::string build;    // Version of ivyrun; must be equal on all nodes.
  // Properties of its command line that must be equal on all nodes (Options::join_terms), as pairs
  // of name and value.
  std::vector<std::pair<std::string, std::string>> terms;
};

class JoinedNodeList {
 public:
  // head: node 0, which is always on the list. total_nodes: all nodes of the job, node 0 included.
  // min_nodes: the number needed to start, node 0 included.
  JoinedNodeList(JoiningNode head, int total_nodes, int min_nodes);

  // Adds a node, or replaces what the same process has sent before (it has connected again).
  // Returns nullopt if it was admitted, or else the reason why these nodes cannot form a job, such
  // as another process with the same rank.
  std::optional<Diagnostic> add(const JoiningNode& node);
  // Removes a node that has disconnected before the job started.
  void leave(int rank) { nodes_.erase(rank); }
  // All nodes have joined.
  bool is_complete() const { return nodes_.size() == static_cast<std::size_t>(total_nodes_); }
  // Enough nodes have joined for --nnodes MIN:MAX.
  bool is_enough() const { return nodes_.size() >= static_cast<std::size_t>(min_nodes_); }
  // Returns the ranks and names of node 0 and of the nodes that have joined, by rank. Equal host
  // names are made distinct.
  std::vector<std::pair<int, std::string>> names() const;
  // Names the nodes that have not joined: "nodes 2,5-7".
  std::string missing_text() const;
  int total_nodes() const { return total_nodes_; }

 private:
  // Compares a node with node 0. Returns nullopt if they agree.
  std::optional<Diagnostic> compare(const JoiningNode& node) const;

  const int total_nodes_;
  const int min_nodes_;
  std::map<int, JoiningNode> nodes_;  // The nodes that have joined, by rank.
};

// Names a node in messages: "node 2 (gpu07)".
std::string node_text(int rank, const std::string& host);
// Returns the error shown if too few nodes joined in time. where: the address at which node 0
// listens. how: the command that starts ivyrun on another node.
Diagnostic nodes_missing(const JoinedNodeList& list, const std::string& where,
                         const std::string& how);

}  // namespace ivy
