#include "agent/node/facts/host_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

namespace ivy {
namespace {

constexpr std::size_t kMaxAddresses = 1024;

std::string numeric_address(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return {};
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return text;
}

// Read from the file, not through getpwuid: a static binary has no name service switch.
std::string user_name() {
  const std::string uid = std::to_string(geteuid());
  std::ifstream file("/etc/passwd");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t name_end = line.find(':');
    if (name_end == std::string::npos) continue;
    const std::size_t uid_begin = line.find(':', name_end + 1);
    if (uid_begin == std::string::npos) continue;
    if (line.compare(uid_begin + 1, uid.size() + 1, uid + ":") == 0)
      return line.substr(0, name_end);
  }
  // A user of a directory service is not in the file; the login session has set his name.
  const char* login = std::getenv("LOGNAME");
  return login != nullptr && *login != '\0' ? login : uid;
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint32_t affinity_cores() {
  // Larger than any machine's number of processors; the kernel refuses a set that is too small.
  constexpr int kMaxProcessors = 8192;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxProcessors);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxProcessors),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  CPU_ZERO_S(bytes, set.get());
  if (sched_getaffinity(0, bytes, set.get()) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT_S(bytes, set.get())));
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr && found.size() < kMaxAddresses;
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::string address = numeric_address(entry->ifa_addr);
    if (address.empty()) continue;
    found.push_back({entry->ifa_name, std::move(address), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return found;
}

HostFacts collect_host_facts() {
  HostFacts facts;
  utsname system{};
  uname(&system);
  facts.set_host_name(system.nodename);
  facts.set_architecture(system.machine);
  facts.set_user(user_name());
  facts.set_boot_id(boot_id());
  for (const InterfaceAddress& found : interface_addresses()) {
    Address* address = facts.add_addresses();
    address->set_interface(found.interface);
    address->set_address(found.address);
    address->set_loopback(found.loopback);
  }
  facts.set_cores(affinity_cores());
  return facts;
}

}  // namespace ivy
