// SPDX-License-Identifier: Apache-2.0
// The functions of HostCollectives that only move data: the steps between hosts. The steps inside a
// host are in shared_move.cc.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "comm/collectives/host_collectives.h"
#include "comm/collectives/shared_parts.h"

namespace ivy::comm {

using shared_parts::at;
using shared_parts::divide_up;

namespace {

void copy_unless_same(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

std::vector<std::uint8_t> copy_of(const void* data, const Blocks& blocks) {
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    bytes = std::max(bytes, blocks[rank].offset + blocks[rank].bytes);
  }
  return {at(data, 0), at(data, bytes)};
}

}  // namespace

// The members of each host synchronize, then one member of each host with the other hosts, then the
// members again.
bool HostCollectives::barrier(const OperationCall& call) {
  if (!shared_barrier(local_, call)) return false;
  if (!spans_hosts()) return true;
  if (map_.own_member() == 0) {
    const std::uint32_t hosts = map_.host_count();
    std::uint32_t step = 0;
    for (std::uint32_t distance = 1; distance < hosts; distance *= 2) {
      ++step;
      const std::int32_t next = rank_at((map_.own_host() + distance) % hosts, 0);
      const std::int32_t before = rank_at((map_.own_host() + hosts - distance) % hosts, 0);
      if (!exchange(call, {{next, nullptr, 0, step}}, {{before, nullptr, 0, step}})) return false;
    }
  }
  return shared_barrier(local_, call);
}

namespace {

// A binomial tree over the hosts, by their distance from the root's host: clearing the lowest set
// bit of a distance yields the parent's. One rank of each host, its delegate, takes part in the
// tree.
class HostTree {
 public:
  HostTree(const HostMap& map, std::int32_t root) : map_(map), root_(root) {
    const std::uint32_t hosts = map_.host_count();
    distance_ = (map_.own_host() + hosts - root_host()) % hosts;
    lowest_ = distance_ == 0 ? std::bit_ceil(hosts) : distance_ & (~distance_ + 1);
    for (std::uint32_t bit = lowest_ / 2; bit > 0; bit /= 2) {
      if (distance_ + bit < hosts) children_.push_back(delegate(distance_ + bit));
    }
  }

  bool is_root_host() const { return distance_ == 0; }
  std::int32_t own_delegate() const { return delegate(distance_); }
  std::int32_t parent() const { return delegate(distance_ - lowest_); }
  const std::vector<std::int32_t>& children() const { return children_; }

 private:
  std::uint32_t root_host() const { return map_.host_of[static_cast<std::size_t>(root_)]; }
  std::int32_t delegate(std::uint32_t distance) const {
    const std::uint32_t host = (root_host() + distance) % map_.host_count();
    return host == root_host() ? root_ : map_.hosts[host][0];
  }

  const HostMap& map_;
  const std::int32_t root_;
  std::uint32_t distance_ = 0;
  std::uint32_t lowest_ = 0;
  std::vector<std::int32_t> children_;
};

}  // namespace

bool HostCollectives::broadcast(const OperationCall& call, const Collective& collective) {
  const Side<void>& buffer = collective.receive;
  const std::int32_t root = collective.shape.root;
  if (!spans_hosts()) return shared_broadcast(local_, call, buffer, member_of(root));
  const std::size_t bytes = buffer.bytes;
  const HostTree tree(map_, root);
  const bool is_delegate = tree.own_delegate() == map_.self;
  const std::uint32_t member = member_of(tree.own_delegate());
  const std::size_t cut = kBroadcastPieceBytes;
  const std::size_t pieces = std::max<std::size_t>(1, divide_up(bytes, cut));
  const auto piece_bytes = [&](std::size_t piece) { return std::min(cut, bytes - piece * cut); };
  std::vector<Outgoing> outgoing;
  const auto send_on = [&](std::size_t piece) {
    outgoing.clear();
    for (const std::int32_t child : tree.children()) {
      outgoing.push_back({child, at(buffer.data, piece * cut), piece_bytes(piece),
                          static_cast<std::uint32_t>(piece)});
    }
  };
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    void* const place = at(buffer.data, piece * cut);
    std::vector<Incoming> incoming;
    if (tree.is_root_host()) {
      send_on(piece);
    } else {
      // The next piece arrives while this one is forwarded.
      incoming.push_back(
          {tree.parent(), place, piece_bytes(piece), static_cast<std::uint32_t>(piece)});
      if (piece > 0) send_on(piece - 1);
    }
    if (is_delegate && !exchange(call, outgoing, incoming)) return false;
    if (!shared_broadcast(local_, call, {place, piece_bytes(piece), {}}, member)) return false;
  }
  if (!is_delegate || tree.is_root_host()) return true;
  send_on(pieces - 1);
  return exchange(call, outgoing, {});
}

bool HostCollectives::all_gather(const OperationCall& call, const Collective& collective) {
  const void* const send = collective.send.data;
  void* const receive = collective.receive.data;
  const Blocks& blocks = collective.receive.blocks;
  if (!spans_hosts()) return shared_all_gather(local_, call, send, collective.receive);
  const std::uint32_t own_host = map_.own_host();
  const std::uint32_t own_member = map_.own_member();
  const Block own = blocks[static_cast<std::size_t>(map_.self)];
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (std::uint32_t step = 1; step < map_.host_count(); ++step) {
    // Every rank starts with a different host.
    const std::uint32_t host = (own_host + step) % map_.host_count();
    const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
    outgoing.push_back({rank_at(host, own_member % size), send, own.bytes, 0});
    for (std::uint32_t member = own_member; member < size; member += members()) {
      const std::int32_t from = rank_at(host, member);
      const Block block = blocks[static_cast<std::size_t>(from)];
      incoming.push_back({from, at(receive, block.offset), block.bytes, 0});
    }
  }
  if (!exchange(call, outgoing, incoming)) return false;
  if (local_ == nullptr) {
    copy_unless_same(at(receive, own.offset), send, own.bytes);
    return true;
  }
  for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
    const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
    for (std::uint32_t first = 0; first < size; first += members()) {
      std::vector<Block> round(members());
      for (std::uint32_t member = 0; member < members() && first + member < size; ++member) {
        round[member] = blocks[static_cast<std::size_t>(rank_at(host, first + member))];
      }
      const void* const own_blocks =
          host == own_host ? send : at(receive, round[own_member].offset);
      if (!shared_all_gather(local_, call, own_blocks, {receive, 0, round})) return false;
    }
  }
  return true;
}

// Appends the messages of a rooted operation to or from ranks on other hosts. Returns the blocks of
// the ranks on this host.
template <class Message, class Memory>
std::vector<Block> HostCollectives::between_hosts(std::vector<Message>& messages, Memory* data,
                                                  const Blocks& blocks) const {
  std::vector<Block> inside;
  for (std::uint32_t rank = 0; rank < map_.rank_count(); ++rank) {
    const Block block = blocks[rank];
    if (map_.host_of[rank] == map_.own_host()) {
      inside.push_back(block);
    } else {
      messages.push_back({static_cast<std::int32_t>(rank), at(data, block.offset), block.bytes, 0});
    }
  }
  return inside;
}

bool HostCollectives::gather(const OperationCall& call, const Collective& collective) {
  const Side<const void>& send = collective.send;
  const Side<void>& receive = collective.receive;
  const std::int32_t root = collective.shape.root;
  if (!spans_hosts()) return shared_gather(local_, call, {send, receive, member_of(root)});
  const bool is_inside = map_.host_of[static_cast<std::size_t>(root)] == map_.own_host();
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  std::vector<Block> inside;
  if (!is_inside) outgoing.push_back({root, send.data, send.bytes, 0});
  if (map_.self == root) inside = between_hosts(incoming, receive.data, receive.blocks);
  if (!exchange(call, outgoing, incoming)) return false;
  if (!is_inside) return true;
  const Side<void> local_receive = {receive.data, 0, std::move(inside)};
  return shared_gather(local_, call, {send, local_receive, member_of(root)});
}

bool HostCollectives::scatter(const OperationCall& call, const Collective& collective) {
  const Side<const void>& send = collective.send;
  const Side<void>& receive = collective.receive;
  const std::int32_t root = collective.shape.root;
  if (!spans_hosts()) return shared_scatter(local_, call, {send, receive, member_of(root)});
  const bool is_inside = map_.host_of[static_cast<std::size_t>(root)] == map_.own_host();
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  std::vector<Block> inside;
  if (!is_inside) incoming.push_back({root, receive.data, receive.bytes, 0});
  if (map_.self == root) inside = between_hosts(outgoing, send.data, send.blocks);
  if (!exchange(call, outgoing, incoming)) return false;
  if (!is_inside) return true;
  const Side<const void> local_send = {send.data, 0, std::move(inside)};
  return shared_scatter(local_, call, {local_send, receive, member_of(root)});
}

bool HostCollectives::all_to_all(const OperationCall& call, const Collective& collective) {
  const Side<const void>& from = collective.send;
  const Side<void>& to = collective.receive;
  if (!spans_hosts()) return shared_all_to_all(local_, call, from, to);
  const void* send = from.data;
  const Blocks& send_blocks = from.blocks;
  void* const receive = to.data;
  const Blocks& receive_blocks = to.blocks;
  std::vector<std::uint8_t> kept;
  if (send == receive) {
    // If in place, received data would overwrite data that was not sent yet.
    kept = copy_of(send, send_blocks);
    send = kept.data();
  }
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  const std::uint32_t ranks = map_.rank_count();
  for (std::uint32_t step = 1; step < ranks; ++step) {
    const std::uint32_t target = (static_cast<std::uint32_t>(map_.self) + step) % ranks;
    const std::uint32_t source = (static_cast<std::uint32_t>(map_.self) + ranks - step) % ranks;
    if (map_.host_of[target] != map_.own_host()) {
      outgoing.push_back({static_cast<std::int32_t>(target), at(send, send_blocks[target].offset),
                          send_blocks[target].bytes, 0});
    }
    if (map_.host_of[source] != map_.own_host()) {
      incoming.push_back({static_cast<std::int32_t>(source),
                          at(receive, receive_blocks[source].offset), receive_blocks[source].bytes,
                          0});
    }
  }
  if (!exchange(call, outgoing, incoming)) return false;
  return all_to_all_inside(call, {send, 0, send_blocks}, to);
}

// Exchanges the blocks between ranks of this host.
bool HostCollectives::all_to_all_inside(const OperationCall& call, const Side<const void>& from,
                                        const Side<void>& to) {
  std::vector<Block> to_members;
  std::vector<Block> from_members;
  for (const std::int32_t rank : map_.own_ranks()) {
    to_members.push_back(from.blocks[static_cast<std::size_t>(rank)]);
    from_members.push_back(to.blocks[static_cast<std::size_t>(rank)]);
  }
  return shared_all_to_all(local_, call, {from.data, 0, to_members}, {to.data, 0, from_members});
}

}  // namespace ivy::comm
