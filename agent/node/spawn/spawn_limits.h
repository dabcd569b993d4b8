// SPDX-License-Identifier: Apache-2.0
// Limits of a new process, taken from the shell in which ivyrun was started. Thread: any.
#pragma once

#include <cstdint>

namespace ivy {

// Soft limits (reduced to the hard limits if those are lower), umask and nice of a new process. A
// limit with all bits set means unlimited.
struct SpawnLimits {
  unsigned umask = 022;
  int nice = 0;  // Not applied if lower than the parent's.
  std::uint64_t stack = 0;
  std::uint64_t core = 0;
  std::uint64_t open_files = 0;
};

}  // namespace ivy
