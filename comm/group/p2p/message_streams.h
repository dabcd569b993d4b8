// SPDX-License-Identifier: Apache-2.0
// Opens the byte streams between this rank and a peer: a ring where the peer is on this host, else
// a connection that the sender dials, in the background.
//
// Never waits. Thread: one at a time.
#pragma once

#include "comm/group/p2p/message_failure_detector.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/shm/shared_mail.h"
#include "comm/transports/tcp/peer_listener.h"
#include "proto/contract/status.h"

namespace ivy::comm {

class MessageStreams {
 public:
  // `mail` and `listener` may be null if no rank needs them.
  MessageStreams(const PointToPointOptions& options, SharedMail* mail, PeerListener* listener,
                 const MessageFailureDetector& detector)
      : options_(options), mail_(mail), listener_(listener), detector_(detector) {}

  // True: peer.sink is open. False: not yet, or everything is called off.
  Result<bool> open_sink(MessagePeer& peer);
  // True: peer.source is open. A connection is looked for only if a receive waits for that rank.
  Result<bool> open_source(MessagePeer& peer, const MessageMatching& matching);

 private:
  PeerChannel channel_of(std::int32_t rank) const;

  const PointToPointOptions& options_;
  SharedMail* const mail_;
  PeerListener* const listener_;
  const MessageFailureDetector& detector_;
};

}  // namespace ivy::comm
