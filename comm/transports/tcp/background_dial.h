// SPDX-License-Identifier: Apache-2.0
// Connects to a peer in the background. A stopped peer does not complete the handshake, which must
// only delay the requests to that peer.
//
// Thread: one at a time; a separate thread connects.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/transports/tcp/peer_connections.h"

namespace ivy::comm {

class BackgroundDial {
 public:
  // Dials one stream. `connections` and `is_cancelled` must outlive it.
  BackgroundDial(PeerConnections& connections, const std::string& address,
                 const PeerChannel& channel, const std::atomic<bool>& is_cancelled);
  // Cancels the dial, and closes a connection that was not taken.
  ~BackgroundDial();
  BackgroundDial(const BackgroundDial&) = delete;
  BackgroundDial& operator=(const BackgroundDial&) = delete;

  // Returns the result, once, or nothing while it is still dialling.
  std::optional<Result<PeerSocket>> take();

 private:
  std::mutex mutex_;
  std::optional<Result<PeerSocket>> dialled_;  // The thread's result; guarded by mutex_.
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace ivy::comm
