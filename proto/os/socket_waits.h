// SPDX-License-Identifier: Apache-2.0
// Connects, sends and receives on non-blocking sockets; blocks the thread until a deadline. Thread:
// any.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "proto/os/socket_address.h"

namespace ivy {

// The deadline of a wait on a socket, and an optional way to cancel it.
struct WaitLimit {
  std::chrono::steady_clock::time_point end;
  // Called every few milliseconds. If null, the wait cannot be cancelled.
  const std::function<bool()>* may_continue = nullptr;

  bool is_cancelled() const { return may_continue != nullptr && !(*may_continue)(); }
};

// Waits until the socket is ready for `events`. Returns false after the deadline or if cancelled.
bool wait_for(int socket, short events, const WaitLimit& limit);
// Waits before the next attempt. Returns false after the deadline or if cancelled.
bool pause_for(std::chrono::milliseconds time, const WaitLimit& limit);

// Returns 0 or an errno; ETIMEDOUT if there is no answer.
int connect_to(int socket, SocketAddress& where, const WaitLimit& limit);
// Returns the pending error of a socket, such as that of a failed connect(): an errno, or 0.
int error_of(int socket);

// Returns false after the deadline, if cancelled, or if the connection is broken.
bool send_all(int socket, std::string_view bytes, const WaitLimit& limit);
// Replaces `bytes` by exactly `count` bytes. Returns false after the deadline, if cancelled, or if
// the connection was closed before.
bool receive_all(int socket, std::string& bytes, std::size_t count, const WaitLimit& limit);

}  // namespace ivy
