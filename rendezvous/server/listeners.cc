// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/listeners.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;

// Limit of connections accepted in one turn, so that a burst of them does not delay connected
// clients.
constexpr int kAcceptsPerTurn = 64;
// Usually more than the backlog that the kernel allows (net.core.somaxconn). Bounded, because a
// stream of new connections must not keep the server busy rejecting them.
constexpr std::size_t kMaxRejected = 16'384;

}  // namespace

void Listeners::add(int listening_fd, Take take) {
  wait(listeners_.emplace_back(
      Listener{stream_descriptor(loop_, listening_fd), std::move(take), false, false}));
}

void Listeners::wait(Listener& listener) {
  listener.socket.async_wait(stream_descriptor::wait_read, alive_.guard([this, &listener] {
    accept_some(listener);
    if (!listener.paused && listener.socket.is_open()) wait(listener);
  }));
}

void Listeners::accept_some(Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn && listener.socket.is_open(); ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    Descriptor connection(accept4(listener.socket.native_handle(),
                                  reinterpret_cast<sockaddr*>(&from), &length,
                                  SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      listener.starved = false;
      listener.take(std::move(connection), from);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      const std::string why = std::strerror(errno);
      if (!std::exchange(listener.starved, true))
        log_("cannot accept connections: " + why + "; trying again 4 times per second");
      listener.paused = true;
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void Listeners::retry() {
  for (Listener& listener : listeners_) {
    if (!std::exchange(listener.paused, false)) continue;
    accept_some(listener);
    if (!listener.paused) wait(listener);
  }
}

void Listeners::reject_pending() {
  for (Listener& listener : listeners_) {
    for (std::size_t count = 0; count < kMaxRejected; ++count)
      if (!Descriptor(accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC)))
        break;
  }
}

// The listeners remain in the list, because the handler of a cancelled wait refers to its listener.
void Listeners::close() {
  boost::system::error_code ignored;
  for (Listener& listener : listeners_) {
    listener.paused = false;
    listener.socket.close(ignored);
  }
}

}  // namespace ivy::store
