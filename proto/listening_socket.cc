#include "proto/listening_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

namespace ivy {
namespace {

struct Place {
  sockaddr_storage address{};
  socklen_t length = 0;
};

std::optional<Place> parse(const std::string& address, std::uint16_t port) {
  Place place;
  auto& v4 = reinterpret_cast<sockaddr_in&>(place.address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(place.address);
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    place.length = sizeof v4;
    return place;
  }
  if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    place.length = sizeof v6;
    return place;
  }
  return std::nullopt;
}

}  // namespace

Result<int> listen_tcp(const std::string& address, std::uint16_t port) {
  const std::optional<Place> place = parse(address, port);
  if (!place) return Error{Code::kInvalidArgument, "'" + address + "' is no numeric address"};
  const int family = place->address.ss_family;
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno_error(Code::kUnavailable, "open a socket", errno);
  const int one = 1;
  const int only_v6 = address == "::" ? 0 : 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  // Said either way: net.ipv6.bindv6only may have turned the default around.
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&place->address), place->length) == 0 &&
      listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const Code code = errno == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable;
  const Error error =
      errno_error(code, "listen on " + address + " port " + std::to_string(port), errno);
  close(fd);
  return error;
}

}  // namespace ivy
