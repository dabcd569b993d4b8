// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/message_streams.h"

#include "comm/transports/shm/shared_ring.h"
#include "comm/transports/tcp/socket_stream.h"

namespace ivy::comm {
namespace {

constexpr std::uint32_t kChannel = 1;  // The channel of collectives is 0.

}  // namespace

PeerChannel MessageStreams::channel_of(std::int32_t rank) const {
  PeerChannel channel;
  channel.communicator = options_.communicator;
  channel.peer_rank = static_cast<std::uint32_t>(options_.peer(rank).world_rank);
  channel.channel = kChannel;
  return channel;
}

Result<bool> MessageStreams::open_sink(MessagePeer& peer) {
  if (peer.sink != nullptr) return true;
  if (!options_.is_remote(peer.rank)) {
    peer.sink =
        IVY_TRY(make_ring(mail_->ring_to(static_cast<std::uint32_t>(options_.member(peer.rank)))));
    return true;
  }
  if (peer.dial == nullptr) {
    peer.dial = std::make_unique<BackgroundDial>(*listener_, options_.peer(peer.rank).address,
                                                 channel_of(peer.rank), detector_.is_cancelled());
    return false;
  }
  const std::optional<Result<PeerSocket>> dialled = peer.dial->take();
  if (!dialled) return false;
  peer.dial.reset();
  if (!dialled->ok()) {
    if (detector_.is_cancelled()) return false;
    return dialled->error();
  }
  peer.sink = make_socket_sink((*dialled)->socket);
  return true;
}

Result<bool> MessageStreams::open_source(MessagePeer& peer, const MessageMatching& matching) {
  if (peer.source != nullptr) return true;
  if (peer.rank == options_.self) return false;
  if (!options_.is_remote(peer.rank)) {
    peer.source = IVY_TRY(
        find_ring(mail_->ring_from(static_cast<std::uint32_t>(options_.member(peer.rank)))));
    return peer.source != nullptr;
  }
  if (!matching.is_wanted(peer.rank, true)) return false;
  const int socket = listener_->take(channel_of(peer.rank), std::chrono::milliseconds(0)).socket;
  if (socket < 0) return false;
  peer.source = make_socket_source(socket);
  return true;
}

}  // namespace ivy::comm
