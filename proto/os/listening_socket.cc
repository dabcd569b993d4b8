// SPDX-License-Identifier: Apache-2.0
#include "proto/os/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"

namespace ivy {

Result<int> listen_tcp(const std::string& address, std::uint16_t port, PortReuse reuse) {
  SocketAddress target = parse_address(address, port);
  if (!target.is_valid())
    return Error{Code::kInvalidArgument,
                 "'" + address + "' is a host name; a numeric address is needed"};
  const int family = target.storage.ss_family;
  Descriptor socket(target.open_socket());
  if (!socket) return errno_error(Code::kUnavailable, "open a socket", errno);
  const int fd = socket.get();
  const int one = 1;
  const int only_v6 = address == "::" ? 0 : 1;
  if (reuse == PortReuse::kAllowed) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  // Set explicitly in both cases, because net.ipv6.bindv6only may have changed the default.
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  if (bind(fd, target.get(), target.size) == 0 && listen(fd, SOMAXCONN) == 0)
    return socket.release();
  const Code code = errno == EADDRINUSE      ? Code::kAlreadyExists
                    : errno == EADDRNOTAVAIL ? Code::kNotFound
                                             : Code::kUnavailable;
  return errno_error(code, "listen on " + address + " port " + std::to_string(port), errno);
}

std::uint16_t bound_port(int fd) { return own_address(fd).port(); }

Result<int> listen_unix(const std::string& path, int type, int backlog) {
  SocketAddress target = unix_address(path);
  if (!target.is_valid())
    return Error{Code::kInvalidArgument, "socket path is too long: " + path,
                 "set XDG_RUNTIME_DIR to a shorter path"};
  Descriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_error(Code::kUnavailable, "open a socket", errno);
  if (bind(socket.get(), target.get(), target.size) != 0 || listen(socket.get(), backlog) != 0)
    return errno_error(Code::kUnavailable, "listen on " + path, errno);
  return socket.release();
}

}  // namespace ivy
