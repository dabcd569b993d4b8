// Sockets that never block, and threads that may: connect, send and receive until a deadline.
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "proto/os/socket_address.h"

namespace ivy {

// How long a wait at a socket may take, and what calls it off.
struct Patience {
  std::chrono::steady_clock::time_point end;
  // Asked every few milliseconds; null: it cannot be called off.
  const std::function<bool()>* may_go_on = nullptr;

  bool is_called_off() const { return may_go_on != nullptr && !(*may_go_on)(); }
};

// Waits until the socket is ready for `events`. False: too late, or called off.
bool wait_for(int socket, short events, const Patience& patience);
// Waits before the next attempt. False: too late, or called off.
bool pause_for(std::chrono::milliseconds time, const Patience& patience);

// Returns an errno, or 0; ETIMEDOUT: there was no answer.
int connect_to(int socket, SocketAddress& where, const Patience& patience);
// What a connection that was begun has failed with: an errno, or 0.
int error_of(int socket);

// Both are false when it is too late, called off, or the peer has hung up.
bool send_all(int socket, std::string_view bytes, const Patience& patience);
bool receive_all(int socket, std::string& bytes, std::size_t count, const Patience& patience);

}  // namespace ivy
