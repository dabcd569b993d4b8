// What the kernel says of a process of this host. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace ivy::comm {

// The letter of /proc/PID/stat: 'R', 'S', 'T' (stopped), 'Z' (has ended, not reaped), ... Nothing:
// it cannot be read.
inline std::optional<char> process_state(std::int32_t pid) {
  if (pid <= 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The name before the state may hold anything, a parenthesis too.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return std::nullopt;
  return line[name_end + 2];
}

}  // namespace ivy::comm
