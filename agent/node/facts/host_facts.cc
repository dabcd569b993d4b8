// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/host_facts.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/interfaces.h"
#include "proto/os/processor_quota.h"

namespace ivy {
namespace {

// Reads the file instead of calling getpwuid(): a static binary has no name service switch.
std::string user_name() {
  constexpr std::size_t kMaxBytes = 16u << 20;
  const std::string uid = std::to_string(geteuid());
  const std::string file = read_file("/etc/passwd", kMaxBytes).value_or("");
  for (std::string_view rest = file; !rest.empty();) {
    std::string_view line = take_part(rest, '\n');
    const std::string_view name = take_part(line, ':');
    take_part(line, ':');  // The password.
    if (take_part(line, ':') == uid) return std::string(name);
  }
  // A user of a directory service is not in the file, but the login session has set the name.
  const char* login = std::getenv("LOGNAME");
  return login != nullptr && *login != '\0' ? login : uid;
}

std::uint32_t affinity_cores() {
  // More than any machine has; the kernel rejects a set that is too small.
  constexpr int kMaxProcessors = 8192;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxProcessors);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxProcessors),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  CPU_ZERO_S(bytes, set.get());
  if (sched_getaffinity(0, bytes, set.get()) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT_S(bytes, set.get())));
}

}  // namespace

HostFacts collect_host_facts() {
  HostFacts facts;
  utsname system{};
  uname(&system);
  facts.set_host_name(system.nodename);
  facts.set_architecture(system.machine);
  facts.set_user(user_name());
  // A UUID: 36 digits and dashes.
  facts.set_boot_id(read_file("/proc/sys/kernel/random/boot_id", 36).value_or(""));
  for (const InterfaceAddress& found : interface_addresses()) {
    Address* address = facts.add_addresses();
    address->set_interface(found.interface);
    address->set_address(found.address);
    address->set_loopback(found.loopback);
  }
  facts.set_cores(affinity_cores());
  facts.set_processor_quota(own_processor_quota());
  return facts;
}

}  // namespace ivy
