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
struct Patience {
  std::chrono::steady_clock::time_point end;
  // Called every few milliseconds. If null, the wait cannot be cancelled.
  const std::function<bool()>* may_go_on = nullptr;

  bool is_called_off() const { return may_go_on != nullptr && !(*may_go_on)(); }
};

// Waits until the socket is ready for `events`. Returns false after the deadline or if cancelled.
bool wait_for(int socket, short events, const Patience& patience);
// Waits before the next attempt. Returns false after the deadline or if cancelled.
bool pause_for(std::chrono::milliseconds time, const Patience& patience);

// Returns 0 or an errno; ETIMEDOUT if there is no answer.
int connect_to(int socket, SocketAddress& where, const Patience& patience);
// Returns the pending error of a socket, such as that of a failed connect(): an errno, or 0.
int error_of(int socket);

// Both return false after the deadline, if cancelled, or if the peer has closed the connection.
bool send_all(int socket, std::string_view bytes, const Patience& patience);
bool receive_all(int socket, std::string& bytes, std::size_t count, const Patience& patience);

}  // namespace ivy
