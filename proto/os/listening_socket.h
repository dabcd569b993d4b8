// Sockets that listen: TCP on a numeric address, and Unix sockets. They never block and are not
// inherited. Thread: any. Lifetime: the caller closes the descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// `address` is numeric and without brackets; port 0: the kernel chooses. "::" takes IPv4 as well,
// every other IPv6 address only what it says. The descriptor takes an address over whose last
// connections are still in TIME_WAIT. Errors: InvalidArgument (no numeric address), AlreadyExists
// (another program listens there), NotFound (this host has no such address), Unavailable.
Result<int> listen_tcp(const std::string& address, std::uint16_t port);

// The port of a TCP socket, which the kernel may have chosen; 0 where it has none.
std::uint16_t bound_port(int fd);

// `type` is SOCK_STREAM or SOCK_SEQPACKET. A file in its place is an error: the caller knows
// whether it may be removed. Errors: InvalidArgument (the path is too long), Unavailable.
Result<int> listen_unix(const std::string& path, int type, int backlog);

}  // namespace ivy
