// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/interface_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_waits.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::milliseconds;

// Room for the connections of all neighbours, because none is ever accepted.
constexpr int kBacklog = 4096;

Error rejection_of(int error) {
  // The peer listens during the whole bootstrap, so something else has refused the connection.
  if (error == ECONNREFUSED)
    return Error{Code::kUnavailable,
                 "refused: a firewall, or another machine with the same address", ""};
  return Error{Code::kUnavailable, std::strerror(error), ""};
}

Result<void> wait_connected(int fd, milliseconds timeout) {
  pollfd ready{fd, POLLOUT, 0};
  if (poll(&ready, 1, 0) <= 0 && !wait_for(fd, POLLOUT, {steady_now() + timeout}))
    return Error{Code::kDeadlineExceeded,
                 "no answer within " + std::to_string(timeout.count()) + " ms", ""};
  if (const int error = error_of(fd); error != 0) return rejection_of(error);
  return {};
}

// A connection attempt. Without a socket, it has already failed with `error`.
struct Attempt {
  const RankFacts* peer = nullptr;
  Interface interface;
  Descriptor socket;
  int error = 0;
};

Attempt begin(const std::string& address, std::uint16_t port) {
  Attempt attempt;
  SocketAddress parsed = parse_address(address, port);
  attempt.socket.reset(parsed.is_valid() ? parsed.open_socket() : -1);
  if (!attempt.socket) {
    attempt.error = parsed.is_valid() ? errno : EAFNOSUPPORT;
  } else if (connect(attempt.socket.get(), parsed.get(), parsed.size) != 0 &&
             errno != EINPROGRESS) {
    attempt.error = errno;
    attempt.socket.reset();
  }
  return attempt;
}

Result<void> end(const Attempt& attempt, milliseconds timeout) {
  if (!attempt.socket) return rejection_of(attempt.error);
  return wait_connected(attempt.socket.get(), timeout);
}

}  // namespace

std::uint16_t ProbeListener::listen_at(const std::string& address) {
  SocketAddress bound = parse_address(address, 0);
  if (!bound.is_valid() || fd_) return 0;
  fd_.reset(bound.open_socket());
  if (!fd_ || bind(fd_.get(), bound.get(), bound.size) != 0 || listen(fd_.get(), kBacklog) != 0)
    return 0;
  return own_address(fd_.get()).port();
}

Result<void> try_address(const std::string& address, std::uint16_t port, milliseconds timeout) {
  return end(begin(address, port), timeout);
}

std::string try_peers(const RankFacts& own, const std::vector<RankFacts>& others,
                      milliseconds timeout) {
  std::vector<Attempt> attempts;
  for (const RankFacts& peer : others) {
    const std::optional<Interface> chosen = interface_of(peer);
    if (peer.rank == own.rank || is_same_network(own, peer) || !chosen || peer.probe_port == 0)
      continue;
    Attempt attempt = begin(chosen->address, peer.probe_port);
    attempt.peer = &peer;
    attempt.interface = *chosen;
    attempts.push_back(std::move(attempt));
  }
  std::string found;
  const auto deadline = steady_now() + timeout;
  for (const Attempt& attempt : attempts) {
    // The attempts share one deadline: while one is awaited, the others progress.
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_now());
    const Result<void> reached = end(attempt, std::max(left, milliseconds(0)));
    if (reached.ok() || !found.empty()) continue;
    const bool is_silent = reached.error().code == Code::kDeadlineExceeded;
    found =
        unreachable_text(*attempt.peer, attempt.interface,
                         is_silent ? "no answer within " + std::to_string(timeout.count()) + " ms"
                                   : reached.error().message);
  }
  return found;
}

}  // namespace ivy::comm::nccl
