// SPDX-License-Identifier: Apache-2.0
// The nodes of torchrun mode that have connected, and checks that they belong together. Pure;
// thread: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/diagnostic.h"

namespace ivy {

struct JoiningNode {
  int rank = 0;
  std::string host;     // The name that the node's system reports.
  std::string address;  // Numeric address of the node as seen here.
  std::string process;  // Distinguishes two ivyruns with the same rank.
  std::string build;
  std::vector<std::pair<std::string, std::string>>
      terms;  // Terms of its command line (Options::join_terms).
};

class JoinRoll {
 public:
  // head: node 0. least: the minimum number of nodes to start with.
  JoinRoll(JoiningNode head, int nodes, int least);

  // Returns nothing if the node was admitted, or else the reason why these nodes cannot form a job.
  std::optional<Diagnostic> add(const JoiningNode& node);
  void leave(int rank) { nodes_.erase(rank); }
  bool is_complete() const { return nodes_.size() == static_cast<std::size_t>(count_); }
  bool is_enough() const { return nodes_.size() >= static_cast<std::size_t>(least_); }
  // Returns the names of node 0 and of the connected nodes, by rank. Makes equal host names
  // distinct.
  std::vector<std::pair<int, std::string>> names() const;
  // Returns the missing nodes: "nodes 2,5-7".
  std::string missing_text() const;
  std::size_t size() const { return nodes_.size(); }
  int count() const { return count_; }

 private:
  std::optional<Diagnostic> compare(const JoiningNode& node) const;

  const int count_;
  const int least_;
  std::map<int, JoiningNode> nodes_;
};

// Returns "node 2 (gpu07)" for messages.
std::string node_text(int rank, const std::string& host);
// Returns the message for too few nodes after the time limit. where: the listening address.
Diagnostic nodes_missing(const JoinRoll& roll, const std::string& where, const std::string& how);

}  // namespace ivy
