// Host names and addresses for the bootstrap. Thread: any; resolve() may ask the network.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

// Numeric addresses of a host, in the system's order; a numeric host is its own. Unavailable: the
// name is not known (yet).
Result<std::vector<std::string>> resolve(const std::string& host);

bool is_numeric(const std::string& host);

// The numeric address of this host by which it reaches `host`: where others find it.
Result<std::string> own_address_towards(const std::string& host);

// Numeric addresses of this host by which others may reach it, the most likely first; without
// loopback and link-local ones. May be empty.
std::vector<std::string> own_addresses();

}  // namespace ivy::comm
