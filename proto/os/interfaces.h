// SPDX-License-Identifier: Apache-2.0
// The addresses of this host's network interfaces. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // Numeric, as formatted by host_text().
  bool loopback = false;
  int prefix_bits = 0;  // Length of the network prefix.
};

// Returns the IPv4 and IPv6 addresses of interfaces that are up, at most 1024, or an empty list if
// the system does not report them. Link-local IPv6 addresses are omitted, because other processes
// cannot use them without a zone.
std::vector<InterfaceAddress> interface_addresses();

}  // namespace ivy
