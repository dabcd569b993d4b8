// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_agent.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

// A message of draft-miller-ssh-agent: its length in 4 bytes (big endian), its type, its content.
constexpr unsigned char kListKeys[] = {0, 0, 0, 1, 11};
constexpr unsigned char kKeyList = 12;
constexpr std::size_t kMaxAnswerBytes = 256u << 10;

std::uint32_t number_in(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

// Reads exactly `size` bytes. On failure errno has the reason; 0 means the end of the stream.
bool read_all(int fd, unsigned char* bytes, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t count = recv(fd, bytes + done, size - done, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = 0;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

// Returns whether the agent has keys. If not, errno has the reason.
bool lists_keys(int fd) {
  if (send(fd, kListKeys, sizeof kListKeys, MSG_NOSIGNAL) != sizeof kListKeys) return false;
  // The length, the type, and the number of keys that follow.
  std::array<unsigned char, 9> head{};
  if (!read_all(fd, head.data(), 5)) return false;
  const std::size_t length = number_in(head.data());
  errno = 0;
  if (head[4] != kKeyList || length < 5 || length > kMaxAnswerBytes) return false;
  if (!read_all(fd, head.data() + 5, 4)) return false;
  std::array<unsigned char, 4096> rest{};
  for (std::size_t left = length - 5; left > 0;) {
    const std::size_t part = std::min(left, rest.size());
    if (!read_all(fd, rest.data(), part)) return false;
    left -= part;
  }
  errno = 0;
  return number_in(head.data() + 5) > 0;
}

void set_limit(int fd, std::chrono::milliseconds limit) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timeval time{whole.count(),
                     static_cast<suseconds_t>((limit - whole) / std::chrono::microseconds(1))};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

}  // namespace

std::string ssh_agent_path(const SshTarget& target) {
  if (target.identity_agent == "none") return {};
  if (!target.identity_agent.empty()) return target.identity_agent;
  const char* const path = std::getenv("SSH_AUTH_SOCK");
  return path != nullptr ? path : "";
}

Result<Descriptor> open_ssh_agent(const std::string& path, std::chrono::milliseconds limit) {
  const std::string name = "the SSH agent at " + path;
  SocketAddress address = unix_address(path);
  if (!address.is_valid()) return Error{Code::kNotFound, name + " has too long a path"};
  Descriptor agent(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!agent) return errno_error(Code::kResourceExhausted, "socket for " + name, errno);
  // The limits also apply to connect(), because the queue of a stopped agent fills up.
  set_limit(agent.get(), limit);
  const bool is_good =
      connect(agent.get(), address.get(), address.size) == 0 && lists_keys(agent.get());
  if (!is_good && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS)) {
    return Error{Code::kDeadlineExceeded,
                 name + " did not answer for " + std::to_string(limit.count() / 1000) + " s"};
  }
  if (!is_good) return Error{Code::kNotFound, name + " has no keys"};
  set_limit(agent.get(), std::chrono::milliseconds(0));
  return agent;
}

}  // namespace ivy
