// SPDX-License-Identifier: Apache-2.0
// Assigns the node ranks of a job to hosts. Hosts without a node rank are spares: if a host is
// lost, a spare gets its node rank, so that the ranks and their order stay as they are. Pure;
// thread: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ivy {

// Facts about a host that decide whether and where it is used.
struct HostStanding {
  bool is_usable = false;      // It has answered, and was neither lost nor excluded.
  std::string nvlink_domain;   // Accelerator.fabric; empty: unknown, or none beyond the host.
  std::string network_switch;  // "core1.leaf2", HostFacts.topology_address; may be empty.
};

// A spare that gets the node rank of another host. Both are indices of hosts.
struct HostReplacement {
  std::size_t node_rank = 0;
  std::size_t host = 0;
  std::size_t spare = 0;
};

class NodeRanks {
 public:
  // The first `nodes` hosts get node ranks, in their order.
  explicit NodeRanks(std::size_t nodes);

  std::size_t size() const { return nodes_.size(); }
  // The host of each node rank. A lost host keeps its node rank until it is replaced.
  std::vector<std::size_t> hosts() const;
  bool has(std::size_t host) const;
  // The number of workers of a node rank; nothing before set_workers().
  std::optional<int> workers(std::size_t node_rank) const { return nodes_[node_rank].workers; }
  // Gives the node ranks to the first usable hosts of the list, if there are enough.
  void choose_usable(const std::vector<HostStanding>& all);
  // Numbers the nodes in this order from now on, with these numbers of workers. Hosts that are not
  // usable keep their places if the order permits; other hosts become spares.
  void set_workers(const std::vector<std::size_t>& hosts, const std::vector<int>& workers,
                   const std::vector<HostStanding>& all);

  // The host gets the last node rank: it joins a job that runs, whose first host must stay the
  // first.
  void put_last(std::size_t host);
  // Gives the node ranks of hosts that are not usable to spares: preferably one in the same NVLink
  // domain, then one that shares most of the network switches, then the first one. Changes nothing
  // for node ranks that no spare is left for.
  std::vector<HostReplacement> replace_unusable(const std::vector<HostStanding>& all);

 private:
  struct Node {
    std::size_t host = 0;
    std::optional<int> workers = std::nullopt;
  };
  std::vector<Node> nodes_;  // The index is the node rank.
};

// Returns how many switches two hosts share, counted from the top of the network: 1 for
// "core1.leaf2" and "core1.leaf3".
std::size_t shared_switches(const std::string& one, const std::string& other);

}  // namespace ivy
