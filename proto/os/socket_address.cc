// SPDX-License-Identifier: Apache-2.0
#include "proto/os/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <optional>

#include "proto/contract/text.h"

namespace ivy {

int SocketAddress::open_socket() const {
  return socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

SocketAddress parse_address(const std::string& address, std::uint16_t port) {
  SocketAddress parsed;
  sockaddr_in v4 = {};
  sockaddr_in6 v6 = {};
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&parsed.storage, &v4, sizeof v4);
    parsed.size = sizeof v4;
    return parsed;
  }
  const std::size_t percent = address.find('%');
  const bool is_scoped = percent != std::string::npos;
  if (is_scoped) v6.sin6_scope_id = if_nametoindex(address.c_str() + percent + 1);
  if ((!is_scoped || v6.sin6_scope_id != 0) &&
      inet_pton(AF_INET6, address.substr(0, percent).c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&parsed.storage, &v6, sizeof v6);
    parsed.size = sizeof v6;
  }
  return parsed;
}

SocketAddress parse_with_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::optional<std::uint16_t> port = to_number<std::uint16_t>(text.substr(colon + 1));
  if (!port) return {};
  const std::string host = host_of(std::string(text));
  return parse_address(host == "localhost" ? "127.0.0.1" : host, *port);
}

SocketAddress unix_address(std::string_view path) {
  SocketAddress made;
  sockaddr_un address = {};
  if (path.size() >= sizeof address.sun_path) return made;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  std::memcpy(&made.storage, &address, sizeof address);
  made.size = sizeof address;
  return made;
}

namespace {

SocketAddress named_by(int (*query)(int, sockaddr*, socklen_t*), int socket) {
  SocketAddress named;
  socklen_t size = sizeof named.storage;
  if (query(socket, named.get(), &size) != 0) return {};
  named.size = size;
  return named;
}

}  // namespace

SocketAddress own_address(int socket) { return named_by(getsockname, socket); }
SocketAddress peer_address(int socket) { return named_by(getpeername, socket); }

// The port is at the same offset in both kinds of address.
std::uint16_t SocketAddress::port() const {
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::uint32_t SocketAddress::scope() const {
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? v6.sin6_scope_id
                                                                               : 0;
}

void SocketAddress::set_scope(std::uint32_t scope) {
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  if (storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) {
    v6.sin6_scope_id = scope;
  }
}

std::string host_text(const sockaddr_storage& address) {
  return host_text(reinterpret_cast<const sockaddr*>(&address));
}

std::string host_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(*address);
    return inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  }
  if (address->sa_family != AF_INET6) return "unix socket";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*address);
  const std::uint8_t* const bytes = v6.sin6_addr.s6_addr;
  return IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)
             ? inet_ntop(AF_INET, bytes + 12, text.data(), text.size())
             : inet_ntop(AF_INET6, bytes, text.data(), text.size());
}

std::string address_text(const sockaddr_storage& address) {
  const std::string host = host_text(address);
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return host;
  return with_port(host, SocketAddress{address}.port());
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

}  // namespace ivy
