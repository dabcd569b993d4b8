// SPDX-License-Identifier: Apache-2.0
// Looks for what ends a wait for messages besides the messages: a rank that died, that has left, or
// that is gone without a connection which could break.
//
// Thread: any. Takes the mutex for as long as it reads the traffic, and asks peers without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "comm/group/p2p/message_failure_detector.h"
#include "comm/group/p2p/message_traffic.h"
#include "comm/transports/tcp/peer_listener.h"

namespace ivy::comm {

class PeerLiveness {
 public:
  // `mutex` guards `traffic`. `listener` may be null where all ranks are of this host.
  PeerLiveness(std::mutex& mutex, MessageTraffic& traffic, MessageFailureDetector& detector,
               PeerListener* listener)
      : mutex_(mutex),
        traffic_(traffic),
        options_(traffic.options()),
        detector_(detector),
        listener_(listener) {}

  // True: something was found, and the traffic may have a failure to tell or have moved.
  bool look_for_trouble();

 private:
  using Time = std::chrono::steady_clock::time_point;
  // These are called while the mutex is held.
  bool is_missed(const MessagePeer& peer) const;
  std::int32_t next_missed();
  std::optional<bool> is_there(const MessagePeer& peer) const;
  bool is_somebody_there(std::vector<std::int32_t>& doubtful);
  void note_liveness(std::int32_t rank);
  // These take the mutex themselves, as far as they need it.
  MaybeFailure look_for_absent(std::int32_t& missed);
  bool is_listening(std::int32_t rank) const;
  bool are_all_gone();
  bool look_for_desertion();

  std::mutex& mutex_;
  MessageTraffic& traffic_;
  const PointToPointOptions& options_;
  MessageFailureDetector& detector_;
  PeerListener* const listener_;
  Time probed_at_;
  std::int32_t missed_last_ = 0;
  Time counted_at_;
  std::int32_t there_last_ = 0;     // The rank that was last found present.
  std::optional<Time> gone_since_;  // Since when no other rank is present.
};

}  // namespace ivy::comm
