// SPDX-License-Identifier: Apache-2.0
#include "proto/os/socket_waits.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Interval between calls of `may_continue`.
constexpr milliseconds kPollPause{5};

}  // namespace

bool wait_for(int socket, short events, const WaitLimit& limit) {
  while (true) {
    // Rounded up, so that this never reports a deadline that has not passed yet.
    const auto left = std::chrono::ceil<milliseconds>(limit.end - steady_now()).count();
    if (left <= 0 || limit.is_cancelled()) return false;
    const auto slice = limit.may_continue != nullptr ? kPollPause.count() : 60'000;
    pollfd waiting = {socket, events, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left, slice)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool pause_for(milliseconds time, const WaitLimit& limit) {
  const auto end = std::min(limit.end, steady_now() + time);
  while (steady_now() < end) {
    if (limit.is_cancelled()) return false;
    poll(nullptr, 0, static_cast<int>(kPollPause.count()));
  }
  return steady_now() < limit.end;
}

int connect_to(int socket, SocketAddress& where, const WaitLimit& limit) {
  if (connect(socket, where.get(), where.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  return wait_for(socket, POLLOUT, limit) ? error_of(socket) : ETIMEDOUT;
}

int error_of(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

bool send_all(int socket, std::string_view bytes, const WaitLimit& limit) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, limit)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool receive_all(int socket, std::string& bytes, std::size_t count, const WaitLimit& limit) {
  bytes.resize(count);
  std::size_t have = 0;
  while (have < count) {
    const ssize_t got = recv(socket, bytes.data() + have, count - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return false;
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLIN, limit)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace ivy
