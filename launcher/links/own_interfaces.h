// SPDX-License-Identifier: Apache-2.0
// This machine's own addresses, by interface. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Numeric addresses of the interface, IPv4 first, without link-local ones; of every interface but
// the loopback when it is empty. NotFound names the interfaces that there are.
Result<std::vector<std::string>> addresses_of_interface(const std::string& interface);

}  // namespace ivy
