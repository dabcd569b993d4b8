// SPDX-License-Identifier: Apache-2.0
#include "comm/group/core/membership.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ivy::comm {

Membership::Membership(std::string name, std::vector<Member> members, std::int32_t rank)
    : name_(std::move(name)), members_(std::move(members)), rank_(rank) {
  std::map<std::uint32_t, std::int32_t> hosts;  // Maps a host's number in the job to its position.
  for (std::int32_t each = 0; each < size(); ++each) {
    const std::uint32_t host = members_[static_cast<std::size_t>(each)].host;
    hosts.emplace(host, static_cast<std::int32_t>(hosts.size()));
    if (each == rank_) local_rank_ = local_size();
    if (host == own_member().host) local_ranks_.push_back(each);
  }
  node_rank_ = hosts.at(own_member().host);
  node_count_ = static_cast<std::int32_t>(hosts.size());
}

std::vector<TcpPeer> Membership::tcp_peers() const {
  std::vector<TcpPeer> peers;
  for (const Member& member : members_) {
    const auto rank = static_cast<std::int32_t>(peers.size());
    peers.push_back({rank, member.world_rank, member.pid, member.host_name, member.address,
                     static_cast<std::int32_t>(member.job_rank)});
  }
  return peers;
}

void Membership::add_host(Failure& failure) const {
  if (failure.host[0] != '\0') return;
  const auto member = std::find_if(members_.begin(), members_.end(), [&](const Member& each) {
    return each.world_rank == failure.rank;
  });
  if (member == members_.end()) return;
  set_host(failure, member->host_name);
  if (failure.pid == 0) failure.pid = member->pid;
}

}  // namespace ivy::comm
