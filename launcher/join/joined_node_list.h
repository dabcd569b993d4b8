// SPDX-License-Identifier: Apache-2.0
// The list of the nodes of torchrun mode that have joined: node 0, on
// which the job's launcher runs, and the nodes whose ivyruns have connected to it. Checks that all
// of them were started for the same job in the same way. Pure; thread: any, one at a time.
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
  // head: node 0, which is always on the list. nodes: their total number. least: how many of them
  // suffice to start.
  JoinedNodeList(JoiningNode head, int nodes, int least);

  // Adds a node. Returns nothing if it was admitted, or else the reason why these nodes cannot form
  // a job.
  std::optional<Diagnostic> add(const JoiningNode& node);
  // Removes a node that has disconnected before the job started.
  void leave(int rank) { nodes_.erase(rank); }
  // All nodes have joined.
  bool is_complete() const { return nodes_.size() == static_cast<std::size_t>(count_); }
  // Enough nodes have joined for --nnodes MIN:MAX.
  bool is_enough() const { return nodes_.size() >= static_cast<std::size_t>(min_); }
  // Returns the ranks and names of node 0 and of the nodes that have joined, by rank. Equal host
  // names are made distinct.
  std::vector<std::pair<int, std::string>> names() const;
  // Names the nodes that have not joined: "nodes 2,5-7".
  std::string missing_text() const;
  std::size_t size() const { return nodes_.size(); }  // Nodes that have joined, with node 0.
  int count() const { return count_; }                // All nodes.

 private:
  std::optional<Diagnostic> compare(const JoiningNode& node) const;

  const int count_;
  const int min_;
  std::map<int, JoiningNode> nodes_;  // By rank.
};

// Names a node in messages: "node 2 (gpu07)".
std::string node_text(int rank, const std::string& host);
// Returns the message for too few nodes at the time limit. where: the address at which node 0
// listens. how: what the user may do.
Diagnostic nodes_missing(const JoinedNodeList& list, const std::string& where,
                         const std::string& how);

}  // namespace ivy
