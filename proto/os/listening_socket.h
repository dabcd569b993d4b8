// SPDX-License-Identifier: Apache-2.0
// Listening sockets: TCP on a numeric address, and Unix sockets. They are non-blocking and not
// inherited. Thread: any. Lifetime: the caller closes the descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// With kNever, a port counts as in use also if its old connections are in TIME_WAIT, or if a job
// has reserved it (agent/node/spawn/reserved_port.h): the owner of a reserved port needs it later.
enum class PortReuse { kAllowed, kNever };

// `address` is numeric and without brackets. With port 0 the kernel chooses a port. "::" also
// accepts IPv4; other IPv6 addresses accept only IPv6. An address whose old connections are still
// in TIME_WAIT can be reused. Fails with InvalidArgument if the address is not numeric,
// AlreadyExists if another program listens there, NotFound if this host has no such address, and
// Unavailable otherwise.
Result<int> listen_tcp(const std::string& address, std::uint16_t port,
                       PortReuse reuse = PortReuse::kAllowed);

// Returns the port of a TCP socket, which the kernel may have chosen, or 0 if it has none.
std::uint16_t bound_port(int fd);

// `type` is SOCK_STREAM or SOCK_SEQPACKET. An existing file at `path` is an error, because only the
// caller knows whether it may be removed. Fails with InvalidArgument if the path is too long, and
// with Unavailable otherwise.
Result<int> listen_unix(const std::string& path, int type, int backlog);

}  // namespace ivy
