// SPDX-License-Identifier: Apache-2.0
#include "proto/os/peer_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::uint32_t kAllStates = ~std::uint32_t{0};

struct End {
  int family = AF_UNSPEC;
  std::array<std::uint32_t, 4> address{};
  std::uint16_t port = 0;  // In network byte order.
  std::uint32_t interface = 0;
};

// The kernel's tables list an IPv4-mapped IPv6 address as IPv4.
End end_of(const sockaddr_storage& storage) {
  End end;
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    end.family = AF_INET;
    end.port = v4.sin_port;
    end.address[0] = v4.sin_addr.s_addr;
  } else if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    end.family = is_mapped ? AF_INET : AF_INET6;
    end.port = v6.sin6_port;
    end.interface = v6.sin6_scope_id;
    const std::size_t from = is_mapped ? 12 : 0;
    std::memcpy(end.address.data(), v6.sin6_addr.s6_addr + from, 16 - from);
  }
  return end;
}

bool is_loopback(const End& end) {
  if (end.family == AF_INET) return (ntohl(end.address[0]) >> 24) == 127;
  in6_addr address{};
  std::memcpy(&address, end.address.data(), sizeof address);
  return IN6_IS_ADDR_LOOPBACK(&address);
}

struct Question {
  nlmsghdr head{};
  inet_diag_req_v2 body{};
};

Question question_of(const End& from, const End& to) {
  Question question;
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;  // Requests one socket, not all.
  question.body.sdiag_family = static_cast<std::uint8_t>(from.family);
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = kAllStates;
  inet_diag_sockid& id = question.body.id;
  id.idiag_sport = from.port;
  id.idiag_dport = to.port;
  std::memcpy(id.idiag_src, from.address.data(), sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, to.address.data(), sizeof id.idiag_dst);
  id.idiag_if = from.interface;
  id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

}  // namespace

struct PeerOwners::Ends {
  End from;
  End to;
};

// `error` is 0 or an errno; ENOENT means that the kernel does not know the socket.
struct PeerOwners::Found {
  int error = 0;
  inet_diag_msg socket{};
};

PeerOwners::PeerOwners()
    : netlink_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
  if (!netlink_) why_unknown_ = std::strerror(errno);
}

PeerOwners::Found PeerOwners::query_socket(const Ends& ends) {
  const Question question = question_of(ends.from, ends.to);
  Found found;
  if (send(netlink_.get(), &question, sizeof question, 0) < 0) return {errno, {}};
  // The kernel has answered when the request's system call returns.
  alignas(nlmsghdr) std::array<char, 8192> answer;
  const ssize_t count = recv(netlink_.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  if (count < 0) return {errno, {}};
  nlmsghdr head{};
  if (static_cast<std::size_t>(count) < sizeof head) return {EPROTO, {}};
  std::memcpy(&head, answer.data(), sizeof head);
  const std::size_t body_bytes = static_cast<std::size_t>(count) - sizeof head;
  const char* const body = answer.data() + sizeof head;
  if (head.nlmsg_type == NLMSG_ERROR && body_bytes >= sizeof(int)) {
    int error = 0;
    std::memcpy(&error, body, sizeof error);
    return {error == 0 ? EPROTO : -error, {}};
  }
  if (body_bytes < sizeof found.socket) return {EPROTO, {}};
  std::memcpy(&found.socket, body, sizeof found.socket);
  // If no such connection exists, the kernel may return a socket that listens on that port.
  const inet_diag_sockid& id = found.socket.id;
  if (id.idiag_sport != ends.from.port || id.idiag_dport != ends.to.port) return {ENOENT, {}};
  return found;
}

PeerOwners::Owner PeerOwners::of(int fd) {
  const SocketAddress peer = peer_address(fd);
  if (!netlink_) return {};
  if (!peer.is_valid()) return {Location::kClosed, 0, 0};
  const Ends ends{end_of(peer.storage), end_of(own_address(fd).storage)};
  const Found found = query_socket(ends);
  // A socket without an inode has lost its owner; the kernel reports it as root's.
  if (found.error == 0 && found.socket.idiag_inode != 0)
    return {Location::kThisHost, found.socket.idiag_uid, found.socket.idiag_inode};
  if (found.error == 0) return {Location::kClosed, 0, 0};
  if (found.error != ENOENT) {
    why_unknown_ = std::strerror(found.error);
    return {};
  }
  // Look up this end of the connection, to distinguish an unknown peer from a kernel that reports
  // no sockets at all.
  const Found own = query_socket({ends.to, ends.from});
  if (own.error == 0)
    return {is_loopback(ends.from) ? Location::kClosed : Location::kOtherHost, 0, 0};
  if (!peer_address(fd).is_valid()) return {Location::kClosed, 0, 0};
  why_unknown_ = std::strerror(own.error);
  return {};
}

}  // namespace ivy
