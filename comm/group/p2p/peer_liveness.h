// SPDX-License-Identifier: Apache-2.0
// Finds failures that end a wait for messages: a rank that has died, has finalized, or is
// unreachable without a connection that could break.
//
// Thread: any. Holds the mutex while it reads the traffic, and probes peers without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "comm/group/p2p/message_failure_detector.h"
#include "comm/group/p2p/message_traffic.h"
#include "comm/transports/tcp/peer_connections.h"

namespace ivy::comm {

class PeerLiveness {
 public:
  // `mutex` guards `traffic`. `connections` may be null if all ranks are on this host.
  PeerLiveness(std::mutex& mutex, MessageTraffic& traffic, MessageFailureDetector& detector,
               PeerConnections* connections)
      : mutex_(mutex),
        traffic_(traffic),
        options_(traffic.options()),
        detector_(detector),
        connections_(connections) {}

  // Returns whether the traffic has moved or has a failure to report.
  bool find_failure();

 private:
  using Time = std::chrono::steady_clock::time_point;

  // These require the mutex:
  bool is_awaited(const MessagePeer& peer) const;
  std::int32_t next_awaited();
  enum class Presence : std::uint8_t {
    kPresent,  // It may still send, or has unread data.
    kLeft,
    kUnknown,  // Its listener must be probed.
  };
  Presence presence_of(const MessagePeer& peer) const;
  bool is_any_present(std::vector<std::int32_t>& unknown);
  void note_present(std::int32_t rank);

  // These lock the mutex themselves:
  MaybeFailure find_unreachable(std::int32_t& missed);
  bool is_listening(std::int32_t rank) const;
  bool have_all_left();
  bool check_all_left();

  std::mutex& mutex_;
  MessageTraffic& traffic_;
  const PointToPointOptions& options_;
  MessageFailureDetector& detector_;
  PeerConnections* const connections_;
  Time probed_at_;
  std::int32_t awaited_last_ = 0;
  Time counted_at_;
  std::int32_t present_last_ = 0;     // The rank that was last found present.
  std::optional<Time> absent_since_;  // When it was first found that no other rank is present.
};

}  // namespace ivy::comm
