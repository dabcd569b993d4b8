// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

// Returns 0 or an errno.
int allow_reuse(int fd) {
  const int on = 1;
  return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 ? 0 : errno;
}

// Returns 0 or an errno.
int bind_wildcard_v6(int fd, std::uint16_t port) {
  const int off = 0;
  // One socket for both families: torch binds [::] first, and 0.0.0.0 if there is no IPv6.
  if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) return errno;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

// Returns 0 or an errno.
int bind_wildcard_v4(int fd, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

struct Bound {
  Descriptor fd;
  int error = 0;
  const char* address = "[::]";
};

// Binds the port, and lets rank 0 bind it as well. is_shared: also if it has old connections in
// TIME_WAIT, or if this job or another one has reserved it already.
Bound bind_port(std::uint16_t port, bool is_shared) {
  Bound bound;
  const auto bind_by = [&](int family, int (*bind_wildcard)(int, std::uint16_t)) {
    bound.fd.reset(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bound.error = bound.fd ? 0 : errno;
    if (bound.error == 0 && is_shared) bound.error = allow_reuse(bound.fd.get());
    if (bound.error == 0) bound.error = bind_wildcard(bound.fd.get(), port);
    if (bound.error == 0 && !is_shared) bound.error = allow_reuse(bound.fd.get());
  };
  bind_by(AF_INET6, bind_wildcard_v6);
  if (bound.fd && bound.error != EADDRNOTAVAIL) return bound;
  // No IPv6 on this host.
  bound.address = "0.0.0.0";
  bind_by(AF_INET, bind_wildcard_v4);
  return bound;
}

Error bind_error(const Bound& bound, std::uint32_t port) {
  const std::string where = std::string(bound.address) + ":" + std::to_string(port);
  if (bound.error == EADDRINUSE)
    return Error{Code::kAlreadyExists, "port " + where + " is in use on this host",
                 "choose another port, or none to let the kernel choose"};
  return Error{Code::kPermissionDenied, "bind " + where + ": " + std::strerror(bound.error)};
}

}  // namespace

Result<ReservedPort> ReservedPort::reserve(std::uint32_t low, std::uint32_t high) {
  if (low > 65535 || high > 65535 || (low != 0 && high < low))
    return Error{Code::kInvalidArgument,
                 "port range " + std::to_string(low) + "-" + std::to_string(high)};
  const std::uint32_t count = low == 0 ? 1 : high - low + 1;
  const std::uint32_t start = count > 1 ? std::random_device{}() % count : 0;
  Bound bound;
  // In a range, a port that no other socket has comes first: with SO_REUSEADDR on both sockets, the
  // kernel lets several jobs, or one job twice, reserve the same port. Its own choice is unique.
  for (const bool is_shared : {false, true}) {
    if (count == 1 && !is_shared) continue;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t port = low == 0 ? 0 : low + (start + i) % count;
      bound = bind_port(static_cast<std::uint16_t>(port), is_shared);
      const std::uint16_t number = bound.error == 0 ? bound_port(bound.fd.get()) : 0;
      if (bound.error == 0) return ReservedPort(std::move(bound.fd), number);
      if (bound.error != EADDRINUSE && bound.error != EACCES) return bind_error(bound, port);
    }
  }
  if (count == 1) return bind_error(bound, low);
  return Error{Code::kResourceExhausted,
               "every port of " + std::to_string(low) + "-" + std::to_string(high) +
                   " is in use on this host",
               "give a wider --port-range"};
}

}  // namespace ivy
