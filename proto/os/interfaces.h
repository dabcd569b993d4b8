// The addresses of this host's network interfaces. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // As host_text() writes it, in numbers.
  bool loopback = false;
  int prefix_bits = 0;  // The length of its network's part.
};

// IPv4 and IPv6 addresses of interfaces that are up, at most 1024; nothing when the system does not
// tell them. Link-local IPv6 addresses are left out: they mean nothing without a zone, so no other
// process could be given one.
std::vector<InterfaceAddress> interface_addresses();

}  // namespace ivy
