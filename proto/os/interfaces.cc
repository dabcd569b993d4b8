#include "proto/os/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <utility>

#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxAddresses = 1024;

// Empty: it is of no use to another process.
std::string useful_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) return host_text(address);
  if (address->sa_family != AF_INET6) return {};
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? std::string() : host_text(address);
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
    found.push_back({entry->ifa_name, std::move(address), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

}  // namespace ivy
