// SPDX-License-Identifier: Apache-2.0
// This machine's own addresses, by interface. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Returns the numeric addresses of an interface, IPv4 first, without link-local ones. An empty name
// means all interfaces except loopback. NotFound names the interfaces that exist.
Result<std::vector<std::string>> addresses_of_interface(const std::string& interface);

}  // namespace ivy
