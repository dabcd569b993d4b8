// SPDX-License-Identifier: Apache-2.0
// A numeric address and port, or a Unix socket's path, in the system's form. Thread: any.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  bool is_valid() const { return size != 0; }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::uint16_t port() const;  // 0 if it is neither IPv4 nor IPv6.
  // Returns the interface index of a link-local address, or 0 for any other address.
  std::uint32_t scope() const;
  void set_scope(std::uint32_t scope);
  // Opens a non-blocking socket; returns -1 and sets errno on failure.
  int open_socket() const;
};

// Parses "10.0.0.1", "fd00::1" or "fe80::1%eth0". The result is not valid for any other text.
SocketAddress parse_address(const std::string& address, std::uint16_t port);
// Parses "10.0.0.1:28028", "[fd00::1]:28028" or "localhost:28028"; other names are not resolved.
SocketAddress parse_with_port(std::string_view text);

// The result is not valid if the path is too long for a socket.
SocketAddress unix_address(std::string_view path);

// Returns the address of this end of a socket. The result is not valid if the kernel reports none.
SocketAddress own_address(int socket);
// Returns the address of the other end. The result is not valid if the socket is not connected.
SocketAddress peer_address(int socket);

// Formats the address: "10.0.0.1", "fd00::1", or "unix socket" for any other kind. An IPv4 address
// mapped into IPv6 is shown as IPv4.
std::string host_text(const sockaddr_storage& address);
std::string host_text(const sockaddr* address);
// Formats an address for messages: "10.0.0.1:28028", "[fd00::1]:28028" or "unix socket".
std::string address_text(const sockaddr_storage& address);

// Returns whether a numeric address refers to the local host on every host.
bool is_loopback(std::string_view address);

}  // namespace ivy
