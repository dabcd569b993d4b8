// SPDX-License-Identifier: Apache-2.0
// Limits of a new process that come from the shell in which ivyrun was typed. Thread: any.
#pragma once

#include <cstdint>

namespace ivy {

// Soft limits, lowered to the hard ones where those are lower, umask and nice of a new process. All
// bits set: unlimited.
struct SpawnLimits {
  unsigned umask = 022;
  int nice = 0;  // Lower than the parent's own is not applied.
  std::uint64_t stack = 0;
  std::uint64_t core = 0;
  std::uint64_t open_files = 0;
};

}  // namespace ivy
