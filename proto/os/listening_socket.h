// SPDX-License-Identifier: Apache-2.0
// Listening sockets: TCP on a numeric address, and Unix sockets. They are non-blocking and not
// inherited. Thread: any. Lifetime: the caller closes the descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// `address` is numeric and without brackets; port 0: the kernel chooses. "::" also accepts IPv4;
// other IPv6 addresses accept only IPv6. An address whose old connections are still in TIME_WAIT
// can be reused. Errors: InvalidArgument (not a numeric address), AlreadyExists (another program
// listens there), NotFound (this host has no such address), Unavailable.
Result<int> listen_tcp(const std::string& address, std::uint16_t port);

// Returns the port of a TCP socket, which the kernel may have chosen; 0 if it has none.
std::uint16_t bound_port(int fd);

// `type` is SOCK_STREAM or SOCK_SEQPACKET. An existing file at `path` is an error: only the caller
// knows whether it may be removed. Errors: InvalidArgument (the path is too long), Unavailable.
Result<int> listen_unix(const std::string& path, int type, int backlog);

}  // namespace ivy
