// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/rank_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "agent/pmix/event_line.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// "rank 4294967295\n" and some room.
constexpr std::size_t kLongestLine = 64;
// A rank writes its line at once.
constexpr std::int64_t kPatience_ns = 10'000'000'000;
// The others wait in the listener's queue.
constexpr std::size_t kMostAskers = 256;
// How often peers are looked at that say nothing.
constexpr int kLookAgainMs = 1000;

std::vector<pollfd> poll_set(const std::vector<int>& until) {
  std::vector<pollfd> set;
  for (const int fd : until) set.push_back({fd, POLLIN, 0});
  return set;
}

// The supervisor writes nothing: whatever is to be read is the end.
bool has_ended(const std::vector<pollfd>& set, std::size_t count) {
  bool ended = false;
  for (std::size_t i = 0; i < count; ++i) ended |= set[i].revents != 0;
  return ended;
}

}  // namespace

Result<void> RankSocket::serve(const std::vector<int>& until) {
  for (;;) {
    std::vector<pollfd> set = poll_set(until);
    const bool has_room = askers_.size() < kMostAskers;
    set.push_back({has_room ? listening_.get() : -1, POLLIN, 0});
    for (const Asker& asker : askers_) set.push_back({asker.socket.get(), POLLIN, 0});
    if (poll(set.data(), set.size(), askers_.empty() ? -1 : kLookAgainMs) < 0 && errno != EINTR)
      return errno_error(Code::kInternal, "wait for ranks", errno);
    if (has_ended(set, until.size())) return {};
    std::size_t place = until.size() + 1;
    for (auto asker = askers_.begin(); asker != askers_.end();) {
      const bool is_ready = set[place++].revents != 0;
      const bool stays = is_ready ? hear(*asker) : monotonic_ns() < asker->deadline_ns;
      asker = stays ? std::next(asker) : askers_.erase(asker);
    }
    if (set[until.size()].revents != 0) accept_one();
  }
}

void RankSocket::accept_one() {
  Descriptor socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool is_ours = getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
                       peer.uid == geteuid();
  if (is_ours)
    askers_.push_back({std::move(socket), {peer.pid, peer.gid}, {}, monotonic_ns() + kPatience_ns});
}

bool RankSocket::hear(Asker& asker) const {
  std::array<char, kLongestLine> bytes{};
  const ssize_t count = recv(asker.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  asker.received.append(bytes.data(), static_cast<std::size_t>(count));
  const std::size_t end = asker.received.find('\n');
  if (end == std::string::npos && asker.received.size() < kLongestLine) return true;
  reply(asker, std::string_view(asker.received).substr(0, end));
  return false;
}

void RankSocket::reply(const Asker& asker, std::string_view line) const {
  // Far less than the socket holds, so that this never waits for the rank.
  write_all(asker.socket.get(), answer_text(answer_for(line, asker.peer)));
}

std::vector<std::string> RankSocket::answer_for(std::string_view line, const Peer& peer) const {
  const std::int64_t rank = rank_asked_for(line);
  if (rank < 0) return {"error: \"" + escaped_text(line) + "\" is not \"rank\" and a number"};
  Result<std::vector<std::string>> variables = answer_(static_cast<std::uint32_t>(rank), peer);
  if (variables.ok()) return std::move(variables).value();
  const Error& why = variables.error();
  return {"error: " + (why.fix.empty() ? why.message : why.message + "; " + why.fix)};
}

}  // namespace ivy
