// SPDX-License-Identifier: Apache-2.0
// The address on which the agent accepts launchers of other hosts. A value.
#pragma once

#include <cstdint>
#include <string>

namespace ivy {

struct ListenAddress {
  std::string address;  // Numeric. Empty means every address, IPv4 and IPv6.
  std::uint16_t port = 0;
  bool operator==(const ListenAddress&) const = default;
};

}  // namespace ivy
