// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator, the host of each, and this process's rank.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/member.h"
#include "comm/transports/tcp/tcp_mesh.h"

namespace ivy::comm {

class Membership {
 public:
  // `name` is the communicator's, such as "world" or "world/3".
  Membership(std::string name, std::vector<Member> members, std::int32_t rank);

  const std::string& name() const { return name_; }
  const std::vector<Member>& members() const { return members_; }
  const Member& own_member() const { return members_[static_cast<std::size_t>(rank_)]; }
  std::int32_t rank() const { return rank_; }
  std::int32_t size() const { return static_cast<std::int32_t>(members_.size()); }
  // The ranks of this host, in order, and this rank's position among them.
  const std::vector<std::int32_t>& local_ranks() const { return local_ranks_; }
  std::int32_t local_rank() const { return local_rank_; }
  std::int32_t local_size() const { return static_cast<std::int32_t>(local_ranks_.size()); }
  // This host's position among the hosts, in the order of their first ranks.
  std::int32_t node_rank() const { return node_rank_; }
  std::int32_t node_count() const { return node_count_; }
  // Returns -1 if there is no such rank.
  std::int32_t world_rank(std::int32_t rank) const {
    return rank < 0 || rank >= size() ? -1 : members_[static_cast<std::size_t>(rank)].world_rank;
  }
  // Returns the rank's number in the job, as assigned by the launcher, or -1.
  std::int32_t job_rank(std::int32_t rank) const {
    if (rank < 0 || rank >= size()) return -1;
    return static_cast<std::int32_t>(members_[static_cast<std::size_t>(rank)].job_rank);
  }
  std::vector<TcpPeer> tcp_peers() const;
  // Adds the host and pid of the blamed rank, if the failure lacks them.
  void add_host(Failure& failure) const;

 private:
  std::string name_;
  std::vector<Member> members_;
  std::int32_t rank_;
  std::vector<std::int32_t> local_ranks_;
  std::int32_t local_rank_ = 0;
  std::int32_t node_rank_ = 0;
  std::int32_t node_count_ = 1;
};

}  // namespace ivy::comm
