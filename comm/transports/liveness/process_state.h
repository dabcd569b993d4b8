// SPDX-License-Identifier: Apache-2.0
// The state of a process of this host, from /proc. Thread: any.
#pragma once

#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace ivy::comm {

// Returns the fields of /proc/PID/stat that follow the process's name, from its state on, or an
// empty text if they cannot be read.
inline std::string read_stat_fields(std::int32_t pid) {
  if (pid <= 0) return {};
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The name before the state may contain any character, including a parenthesis.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return {};
  return line.substr(name_end + 2);
}

// Returns 'R', 'S', 'T' (stopped), 'Z' (exited but not reaped) and so on, or nothing if the state
// cannot be read.
inline std::optional<char> process_state(std::int32_t pid) {
  const std::string words = read_stat_fields(pid);
  return words.empty() ? std::nullopt : std::optional(words.front());
}

// Returns the start time in clock ticks since boot, which distinguishes processes that had the same
// pid, or 0 if it cannot be read.
inline std::uint64_t process_start(std::int32_t pid) {
  constexpr int kWordsBefore = 19;
  std::istringstream words(read_stat_fields(pid));
  std::string skipped;
  for (int i = 0; i < kWordsBefore; ++i) words >> skipped;
  std::uint64_t ticks = 0;
  words >> ticks;
  return ticks;
}

// Returns whether the process has exited, even if its parent has not reaped it or its pid has been
// reused. `start` is its process_start(), or 0 if unknown.
inline bool has_process_ended(std::int32_t pid, std::uint64_t start) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  const std::optional<char> state = process_state(pid);
  if (state == 'Z' || state == 'X') return true;
  const std::uint64_t now = process_start(pid);
  return start != 0 && now != 0 && now != start;
}

}  // namespace ivy::comm
