#include "launcher/links/own_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <memory>

namespace ivy {
namespace {

// Empty: of no use to others.
std::string useful_address(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  }
  if (address->sa_family != AF_INET6) return {};
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return {};
  return inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
}

}  // namespace

Result<std::vector<std::string>> addresses_of_interface(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Error{Code::kUnavailable, "this machine's interfaces"};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> v4;
  std::vector<std::string> v6;
  std::string known;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = useful_address(entry->ifa_addr);
    if (address.empty()) continue;
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name) + " " + address;
    const bool is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    const bool is_wanted = interface.empty() ? !is_loopback : interface == entry->ifa_name;
    if (is_wanted) (entry->ifa_addr->sa_family == AF_INET ? v4 : v6).push_back(address);
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  if (v4.empty() && !interface.empty())
    return Error{Code::kNotFound, "--iface: no usable address on interface " + interface + " here",
                 "this machine has: " + known};
  return v4;
}

}  // namespace ivy
