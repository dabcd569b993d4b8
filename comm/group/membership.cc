#include "comm/group/membership.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ivy::comm {

Membership::Membership(std::string name, std::vector<Seat> seats, std::int32_t rank)
    : name_(std::move(name)), seats_(std::move(seats)), rank_(rank) {
  std::map<std::uint32_t, std::int32_t> hosts;  // Each host's place, by its number in the job.
  for (std::int32_t each = 0; each < size(); ++each) {
    const std::uint32_t host = seats_[static_cast<std::size_t>(each)].host;
    hosts.emplace(host, static_cast<std::int32_t>(hosts.size()));
    if (each == rank_) local_rank_ = local_size();
    if (host == own_seat().host) local_ranks_.push_back(each);
  }
  node_rank_ = hosts.at(own_seat().host);
  node_count_ = static_cast<std::int32_t>(hosts.size());
}

std::vector<TcpPeer> Membership::tcp_peers() const {
  std::vector<TcpPeer> peers;
  for (const Seat& seat : seats_) {
    const auto rank = static_cast<std::int32_t>(peers.size());
    peers.push_back({rank, seat.world_rank, seat.pid, seat.host_name, seat.address,
                     static_cast<std::int32_t>(seat.job_rank)});
  }
  return peers;
}

void Membership::add_place(Failure& failure) const {
  if (failure.host[0] != '\0') return;
  const auto seat = std::find_if(seats_.begin(), seats_.end(),
                                 [&](const Seat& each) { return each.world_rank == failure.rank; });
  if (seat == seats_.end()) return;
  set_host(failure, seat->host_name);
  if (failure.pid == 0) failure.pid = seat->pid;
}

}  // namespace ivy::comm
