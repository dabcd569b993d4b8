#include "proto/os/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstring>

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
  } else if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
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
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data() + colon + 1, end, port);
  if (read.ec != std::errc() || read.ptr != end) return {};
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return parse_address(host == "localhost" ? "127.0.0.1" : std::string(host), port);
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

}  // namespace ivy
