// SPDX-License-Identifier: Apache-2.0
// Connects, sends and receives on non-blocking sockets until a deadline, blocking the thread.
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "proto/os/socket_address.h"

namespace ivy {

// The time limit of a wait at a socket, and an optional cancellation.
struct Patience {
  std::chrono::steady_clock::time_point end;
  // Called every few milliseconds; null: the wait cannot be cancelled.
  const std::function<bool()>* may_go_on = nullptr;

  bool is_called_off() const { return may_go_on != nullptr && !(*may_go_on)(); }
};

// Waits until the socket is ready for `events`. Returns false if too late or cancelled.
bool wait_for(int socket, short events, const Patience& patience);
// Waits before the next attempt. Returns false if too late or cancelled.
bool pause_for(std::chrono::milliseconds time, const Patience& patience);

// Returns an errno, or 0; ETIMEDOUT: no answer.
int connect_to(int socket, SocketAddress& where, const Patience& patience);
// Returns the pending error of a socket, such as that of a failed connect(): an errno, or 0.
int error_of(int socket);

// Both return false if too late, cancelled, or the peer has closed the connection.
bool send_all(int socket, std::string_view bytes, const Patience& patience);
bool receive_all(int socket, std::string& bytes, std::size_t count, const Patience& patience);

}  // namespace ivy
