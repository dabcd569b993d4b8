// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/subnets.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace ivy::comm::nccl {
namespace {

// Returns the interface's network, such as "10.77.0.0/24" for 10.77.0.3 with 24 bits, or nothing if
// the length of its prefix is not known.
std::optional<std::string> subnet_of(const Interface& interface) {
  std::array<std::uint8_t, 16> bytes = {};
  const bool is_v4 = interface.address.find(':') == std::string::npos;
  const int family = is_v4 ? AF_INET : AF_INET6;
  const int length = is_v4 ? 32 : 128;
  if (interface.prefix_bits <= 0 || interface.prefix_bits > length ||
      inet_pton(family, interface.address.c_str(), bytes.data()) != 1) {
    return std::nullopt;
  }
  for (int bit = interface.prefix_bits; bit < length; ++bit) {
    bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<std::uint8_t>(~(0x80 >> bit % 8));
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(family, bytes.data(), text.data(), text.size());
  return std::string(text.data()) + "/" + std::to_string(interface.prefix_bits);
}

// Returns the rank's first interface in the network, or null.
const Interface* find_in(const RankFacts& rank, const std::string& subnet) {
  for (const Interface& one : rank.interfaces) {
    if (!is_inner(one) && subnet_of(one) == subnet) return &one;
  }
  return nullptr;
}

}  // namespace

bool is_inner(const Interface& interface) {
  return interface.name == "lo" || interface.name.starts_with("docker") ||
         interface.name.starts_with("virbr");
}

std::vector<CommonSubnet> common_subnets(const std::vector<RankFacts>& ranks) {
  std::vector<CommonSubnet> common;
  if (ranks.empty()) return common;
  for (const Interface& first : ranks.front().interfaces) {
    const std::optional<std::string> subnet = subnet_of(first);
    if (!subnet || is_inner(first)) continue;
    CommonSubnet found = {*subnet, {}};
    const bool is_common = std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts& rank) {
      const Interface* const peer = find_in(rank, *subnet);
      if (peer == nullptr) return false;
      if (std::find(found.names.begin(), found.names.end(), peer->name) == found.names.end()) {
        found.names.push_back(peer->name);
      }
      return true;
    });
    const bool is_known = std::any_of(common.begin(), common.end(), [&](const CommonSubnet& one) {
      return one.subnet == *subnet;
    });
    if (is_common && !is_known) common.push_back(std::move(found));
  }
  return common;
}

}  // namespace ivy::comm::nccl
