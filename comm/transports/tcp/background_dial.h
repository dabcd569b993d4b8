// SPDX-License-Identifier: Apache-2.0
// Connects to a peer in the background: a peer that is stopped greets nobody, and only requests to
// it wait for that.
//
// Thread: one at a time; the connection is made by a thread of its own.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/transports/tcp/peer_listener.h"

namespace ivy::comm {

class BackgroundDial {
 public:
  // One stream. `listener` and `is_cancelled` outlive it.
  BackgroundDial(PeerListener& listener, const std::string& address, const PeerChannel& channel,
                 const std::atomic<bool>& is_cancelled);
  // Gives up a connection that is not there, and closes one that was not taken.
  ~BackgroundDial();
  BackgroundDial(const BackgroundDial&) = delete;
  BackgroundDial& operator=(const BackgroundDial&) = delete;

  // Takes the result, once; nothing: the connection is still being made.
  std::optional<Result<PeerSocket>> take();

 private:
  std::mutex mutex_;
  std::optional<Result<PeerSocket>> dialled_;  // The thread's result; guarded by mutex_.
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace ivy::comm
