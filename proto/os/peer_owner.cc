// SPDX-License-Identifier: Apache-2.0
// Requests single sockets from the kernel's tables through netlink (sock_diag(7)). A connection
// within this host has two entries, one for each end; the peer's names its owner.
#include "proto/os/peer_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::uint32_t kAllStates = ~std::uint32_t{0};

struct Endpoint {
  int family = AF_UNSPEC;
  std::array<std::uint32_t, 4> address{};
  std::uint16_t port = 0;  // In network byte order.
  std::uint32_t interface = 0;
};

// The two ends of a connection, seen from the socket at `local`.
struct SocketPair {
  Endpoint local;
  Endpoint remote;
};

struct Request {
  nlmsghdr head{};
  inet_diag_req_v2 body{};
};

struct QueryResult {
  int error = 0;  // 0 or an errno. ENOENT: the kernel does not list the socket.
  inet_diag_msg socket{};
};

// The kernel's tables list an IPv4-mapped IPv6 address as IPv4.
Endpoint endpoint_of(const sockaddr_storage& storage) {
  Endpoint endpoint;
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    endpoint.family = AF_INET;
    endpoint.port = v4.sin_port;
    endpoint.address[0] = v4.sin_addr.s_addr;
  } else if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    endpoint.family = is_mapped ? AF_INET : AF_INET6;
    endpoint.port = v6.sin6_port;
    endpoint.interface = v6.sin6_scope_id;
    const std::size_t from = is_mapped ? 12 : 0;
    std::memcpy(endpoint.address.data(), v6.sin6_addr.s6_addr + from, 16 - from);
  }
  return endpoint;
}

bool is_loopback(const Endpoint& endpoint) {
  if (endpoint.family == AF_INET) return (ntohl(endpoint.address[0]) >> 24) == 127;
  in6_addr address{};
  std::memcpy(&address, endpoint.address.data(), sizeof address);
  return IN6_IS_ADDR_LOOPBACK(&address);
}

Request request_for(const SocketPair& pair) {
  Request request;
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;  // Requests one socket, not all.
  request.body.sdiag_family = static_cast<std::uint8_t>(pair.local.family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = kAllStates;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = pair.local.port;
  id.idiag_dport = pair.remote.port;
  std::memcpy(id.idiag_src, pair.local.address.data(), sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, pair.remote.address.data(), sizeof id.idiag_dst);
  id.idiag_if = pair.local.interface;
  id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

QueryResult query_socket(int netlink, const SocketPair& pair) {
  const Request request = request_for(pair);
  if (send(netlink, &request, sizeof request, 0) < 0) return {.error = errno};
  // The kernel has responded when the system call of the request returns.
  alignas(nlmsghdr) std::array<char, 8192> response;
  const ssize_t count = recv(netlink, response.data(), response.size(), MSG_DONTWAIT);
  if (count < 0) return {.error = errno};
  nlmsghdr head{};
  if (static_cast<std::size_t>(count) < sizeof head) return {.error = EPROTO};
  std::memcpy(&head, response.data(), sizeof head);
  const std::size_t body_bytes = static_cast<std::size_t>(count) - sizeof head;
  const char* const body = response.data() + sizeof head;
  if (head.nlmsg_type == NLMSG_ERROR && body_bytes >= sizeof(int)) {
    int error = 0;
    std::memcpy(&error, body, sizeof error);
    return {.error = error == 0 ? EPROTO : -error};
  }
  QueryResult result;
  if (body_bytes < sizeof result.socket) return {.error = EPROTO};
  std::memcpy(&result.socket, body, sizeof result.socket);
  // If no such connection exists, the kernel may return a socket that listens on that port.
  const inet_diag_sockid& id = result.socket.id;
  if (id.idiag_sport != pair.local.port || id.idiag_dport != pair.remote.port)
    return {.error = ENOENT};
  return result;
}

std::string reason_for(int error) {
  return error == ENOENT ? "the kernel does not list this connection" : std::strerror(error);
}

}  // namespace

PeerOwners::Owner PeerOwners::owner_of(int fd) {
  const SocketAddress peer_end = peer_address(fd);
  // Tried again after a failure: the process may have had no free descriptor.
  if (!netlink_) netlink_.reset(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink_) {
    why_unknown_ = std::strerror(errno);
    return {.location = Location::kUnknown};
  }
  if (!peer_end.is_valid()) return {.location = Location::kClosed};
  const SocketPair seen_by_peer{endpoint_of(peer_end.storage),
                                endpoint_of(own_address(fd).storage)};
  const QueryResult peer = query_socket(netlink_.get(), seen_by_peer);
  if (peer.error == 0) {
    // The kernel reports a socket that its owner has closed as root's, without an inode.
    if (peer.socket.idiag_inode == 0) return {.location = Location::kClosed};
    return {Location::kThisHost, peer.socket.idiag_uid, peer.socket.idiag_inode};
  }
  if (peer.error != ENOENT) {
    why_unknown_ = reason_for(peer.error);
    return {.location = Location::kUnknown};
  }
  // The peer is not a socket of this host, or this kernel lists no sockets at all: then this end of
  // the connection is not listed either.
  const QueryResult own = query_socket(netlink_.get(), {seen_by_peer.remote, seen_by_peer.local});
  if (own.error == 0)
    return {.location = is_loopback(seen_by_peer.local) ? Location::kClosed : Location::kOtherHost};
  if (!peer_address(fd).is_valid()) return {.location = Location::kClosed};
  why_unknown_ = reason_for(own.error);
  return {.location = Location::kUnknown};
}

}  // namespace ivy
