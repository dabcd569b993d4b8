// SPDX-License-Identifier: Apache-2.0
// The nodes of torchrun mode that have connected, and whether they belong together. Pure; thread:
// one at a time.
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
  std::string host;     // Its name, as its own system says it.
  std::string address;  // Numeric, as it was seen here.
  std::string process;  // Distinguishes two ivyruns with one rank.
  std::string build;
  std::vector<std::pair<std::string, std::string>>
      terms;  // Its command line's terms (Options::join_terms).
};

class JoinRoll {
 public:
  // head: node 0. least: the minimum number of nodes to start with.
  JoinRoll(JoiningNode head, int nodes, int least);

  // Returns nothing if the node was admitted, else the reason why these nodes cannot form a job.
  std::optional<Diagnostic> add(const JoiningNode& node);
  void leave(int rank) { nodes_.erase(rank); }
  bool is_complete() const { return nodes_.size() == static_cast<std::size_t>(count_); }
  bool is_enough() const { return nodes_.size() >= static_cast<std::size_t>(least_); }
  // Names of node 0 and of those that are here, by rank. Hosts of one name are told apart.
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

// For messages: "node 2 (gpu07)".
std::string node_text(int rank, const std::string& host);
// The time that was given is over, and too few are here. where: the listening address.
Diagnostic nodes_missing(const JoinRoll& roll, const std::string& where, const std::string& how);

}  // namespace ivy
