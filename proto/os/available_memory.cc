// SPDX-License-Identifier: Apache-2.0
#include "proto/os/available_memory.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "proto/os/cgroup_files.h"
#include "proto/os/files.h"

namespace ivy {

// Does not use streams, which would make small programs larger by half a megabyte.
std::uint64_t available_memory_bytes() {
  constexpr std::size_t kMaxFileBytes = 64u << 10;
  constexpr std::string_view kName = "MemAvailable:";
  const std::string text = read_file("/proc/meminfo", kMaxFileBytes).value_or("");
  const std::size_t name = text.find(kName);
  if (name == std::string::npos) return surrounding_memory_left();
  const std::size_t digits =
      std::min(text.find_first_not_of(' ', name + kName.size()), text.size());
  std::uint64_t kibibytes = 0;
  const auto read = std::from_chars(text.data() + digits, text.data() + text.size(), kibibytes);
  if (read.ec != std::errc()) return surrounding_memory_left();
  return std::min(kibibytes << 10, surrounding_memory_left());
}

}  // namespace ivy
