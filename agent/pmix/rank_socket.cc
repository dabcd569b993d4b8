// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/rank_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "agent/pmix/event_line.h"
#include "agent/pmix/rank_process.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/peer_owner.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"

namespace ivy {
namespace {

// "rank 4294967295\n" and some spare bytes.
constexpr std::size_t kLongestLine = 64;
// A rank writes its line immediately.
constexpr std::int64_t kTimeoutNs = 10'000'000'000;
// Further connections wait in the listener's queue.
constexpr std::size_t kMaxRequesters = 256;
// How often the deadlines of silent peers are checked.
constexpr int kCheckDeadlinesMs = 1000;
// Pause after a failed accept(). Most likely no descriptor is free, so the connection stays in the
// listener's queue, and waiting for a readable listener would return immediately.
constexpr int kAcceptPauseMs = 100;

std::vector<pollfd> poll_set(const std::vector<int>& until) {
  std::vector<pollfd> set;
  for (const int fd : until) set.push_back({fd, POLLIN, 0});
  return set;
}

// The supervisor writes nothing, so a readable standard input has been closed. A readable signalfd
// has received a signal.
bool has_ended(const std::vector<pollfd>& set, std::size_t count) {
  bool ended = false;
  for (std::size_t i = 0; i < count; ++i) ended |= set[i].revents != 0;
  return ended;
}

constexpr std::size_t kBlockBytes = 64u << 10;

Descriptor connect_to(std::uint16_t port) {
  SocketAddress address = parse_address("127.0.0.1", port);
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), address.get(), address.size) != 0) return Descriptor();
  disable_nagle(fd.get());
  return fd;
}

// Returns false at end of file.
bool pass_on(int from, int to) {
  std::array<char, kBlockBytes> bytes;
  const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
  if (count < 0 && errno == EINTR) return true;
  if (count > 0 && write_all(to, std::string_view(bytes.data(), static_cast<std::size_t>(count))))
    return true;
  shutdown(to, SHUT_WR);
  return false;
}

// libpmix reads on both sides while it writes, so waiting for one side never deadlocks.
void relay(const Descriptor& rank, const Descriptor& server) {
  std::array<pollfd, 2> ends = {pollfd{rank.get(), POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) return;
    if (ends[0].revents != 0 && !pass_on(rank.get(), server.get())) ends[0].fd = -1;
    if (ends[1].revents != 0 && !pass_on(server.get(), rank.get())) ends[1].fd = -1;
    ends[0].revents = ends[1].revents = 0;
  }
}

void serve_rank(Descriptor rank, const PortFor& port_for, PeerOwners& owners) {
  const PeerOwners::Owner owner = owners.owner_of(rank.get());
  if (owner.location != PeerOwners::Location::kThisHost || owner.user != geteuid()) return;
  const Result<std::uint16_t> port = port_for(process_with_socket(owner.inode));
  Descriptor server = port.ok() ? connect_to(*port) : Descriptor();
  if (!server) return;
  disable_nagle(rank.get());
  std::thread([rank = std::move(rank), server = std::move(server)] {
    relay(rank, server);
  }).detach();
}

void accept_all(const Descriptor& listening, const PortFor& port_for) {
  PeerOwners owners;
  for (;;) {
    Descriptor rank(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (rank)
      serve_rank(std::move(rank), port_for, owners);
    else if (errno != EINTR && errno != ECONNABORTED)
      std::this_thread::sleep_for(std::chrono::milliseconds(kAcceptPauseMs));
  }
}

}  // namespace

Result<void> RankSocket::serve(const std::vector<int>& until) {
  bool is_paused = false;  // accept() failed, so the listener is not polled.
  for (;;) {
    std::vector<pollfd> set = poll_set(until);
    const bool may_accept = requesters_.size() < kMaxRequesters;
    set.push_back({may_accept && !is_paused ? listening_.get() : -1, POLLIN, 0});
    for (const Requester& requester : requesters_)
      set.push_back({requester.socket.get(), POLLIN, 0});
    const int timeout_ms = is_paused             ? kAcceptPauseMs
                           : requesters_.empty() ? -1
                                                 : kCheckDeadlinesMs;
    if (poll(set.data(), set.size(), timeout_ms) < 0 && errno != EINTR)
      return errno_error(Code::kInternal, "wait for ranks", errno);
    if (has_ended(set, until.size())) return {};
    std::size_t index = until.size() + 1;
    for (auto requester = requesters_.begin(); requester != requesters_.end();) {
      const bool is_ready = set[index++].revents != 0;
      const bool stays = is_ready ? receive(*requester) : monotonic_ns() < requester->deadline_ns;
      requester = stays ? std::next(requester) : requesters_.erase(requester);
    }
    if (set[until.size()].revents != 0 || is_paused) is_paused = !accept_one();
  }
}

bool RankSocket::accept_one() {
  Descriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool is_trusted = getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
                          peer.uid == geteuid();
  if (is_trusted)
    requesters_.push_back(
        {std::move(socket), {peer.pid, peer.gid}, {}, monotonic_ns() + kTimeoutNs});
  return true;
}

bool RankSocket::receive(Requester& requester) const {
  std::array<char, kLongestLine> bytes{};
  const ssize_t count = recv(requester.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  requester.received.append(bytes.data(), static_cast<std::size_t>(count));
  const std::size_t end = requester.received.find('\n');
  if (end == std::string::npos && requester.received.size() < kLongestLine) return true;
  reply(requester, std::string_view(requester.received).substr(0, end));
  return false;
}

void RankSocket::reply(const Requester& requester, std::string_view line) const {
  // Far less than the socket buffer holds, so this never waits for the rank.
  write_all(requester.socket.get(), answer_text(answer_for(line, requester.peer)));
}

std::vector<std::string> RankSocket::answer_for(std::string_view line, const Peer& peer) const {
  const std::int64_t rank = requested_rank(line);
  if (rank < 0) return {"error: \"" + escaped_text(line) + "\" is not \"rank\" and a number"};
  Result<std::vector<std::string>> variables = answer_(static_cast<std::uint32_t>(rank), peer);
  if (variables.ok()) return std::move(variables).value();
  const Error& why = variables.error();
  return {"error: " + (why.fix.empty() ? why.message : why.message + "; " + why.fix)};
}

void relay_loopback(Descriptor listening, PortFor port_for) {
  fcntl(listening.get(), F_SETFL, 0);  // Its thread blocks in accept().
  std::thread([listening = std::move(listening), port_for = std::move(port_for)] {
    accept_all(listening, port_for);
  }).detach();
}

}  // namespace ivy
