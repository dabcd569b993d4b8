// SPDX-License-Identifier: Apache-2.0
// Host names and addresses for the bootstrap. Thread: any; resolve() may query a name server.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

// Returns the numeric addresses of a host, in the system's order; a numeric address resolves to
// itself. Fails with Unavailable if the name is not known (yet).
Result<std::vector<std::string>> resolve(const std::string& host);

bool is_numeric(const std::string& host);

// Returns the numeric address of this host that it uses to reach `host`; peers can dial it.
Result<std::string> own_address_towards(const std::string& host);

// Returns numeric addresses of this host that peers may be able to reach, the most likely first,
// without loopback and IPv6 link-local addresses. May be empty.
std::vector<std::string> own_addresses();

}  // namespace ivy::comm
