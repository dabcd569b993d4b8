// SPDX-License-Identifier: Apache-2.0
#include "proto/os/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxAddresses = 1024;

// Returns an empty text for an address that other processes cannot use.
std::string useful_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) return host_text(address);
  if (address->sa_family != AF_INET6) return {};
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? std::string() : host_text(address);
}

int bits_of(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  const bool is_v4 = mask->sa_family == AF_INET;
  std::uint8_t bytes[16] = {};
  const std::size_t from =
      is_v4 ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  std::memcpy(bytes, reinterpret_cast<const char*>(mask) + from, is_v4 ? 4 : 16);
  int bits = 0;
  for (const std::uint8_t byte : bytes) bits += std::popcount(byte);
  return bits;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr && found.size() < kMaxAddresses;
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::string address = useful_address(entry->ifa_addr);
    if (address.empty()) continue;
    found.push_back({entry->ifa_name, std::move(address), (entry->ifa_flags & IFF_LOOPBACK) != 0,
                     bits_of(entry->ifa_netmask)});
  }
  return found;
}

}  // namespace ivy
