// SPDX-License-Identifier: Apache-2.0
// Names and texts of the resource limits of setrlimit(2). Pure; thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ivy {

struct ResourceName {
  std::string_view name;  // As in prlimit(1) and limits.conf: "nofile".
  int number;             // RLIMIT_NOFILE
  std::string_view unit;  // "B", "s", or empty for a count.
  // The caller's soft limit applies on every host, because it describes how the program has to run.
  // Other limits describe the machine or its login policy: a login host's limits of processor time
  // and address space would kill jobs on compute hosts, the number of processes counts all of a
  // user's processes on a machine, and locked memory is raised to the hard limit for network cards.
  bool travels;
};

std::span<const ResourceName> resource_names();
// Return null if there is no such limit.
const ResourceName* find_resource(std::string_view name);
const ResourceName* find_resource(int number);

// RLIM_INFINITY of <sys/resource.h>.
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// Formats a limit: "unlimited", "8 MiB", "64 KiB", "30 s", "65536".
std::string limit_text(const ResourceName& resource, std::uint64_t limit);

}  // namespace ivy
