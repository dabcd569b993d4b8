// A TCP socket that listens on a numeric address.
// Thread: any. Lifetime: the caller closes the descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "proto/status.h"

namespace ivy {

// `address` is numeric and without brackets; port 0: the kernel chooses. "::" takes IPv4 as well,
// every other IPv6 address only what it says. The descriptor does not block, is not inherited, and
// takes an address over whose last connections are still in TIME_WAIT. Errors: InvalidArgument
// (no numeric address), AlreadyExists (another program listens there), Unavailable.
Result<int> listen_tcp(const std::string& address, std::uint16_t port);

}  // namespace ivy
