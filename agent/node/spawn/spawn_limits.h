// SPDX-License-Identifier: Apache-2.0
// Limits of a new process, taken from the shell in which ivyrun was started, or from --rlimit.
// Thread: any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace ivy {

// Soft limits (reduced to the hard limits if those are lower), umask and nice of a new process.
struct SpawnLimits {
  // Numbers of the kernel's limits are below this.
  static constexpr int kResources = 16;

  unsigned umask = 022;
  int nice = 0;  // Not applied if lower than the parent's.
  // Indexed by number, such as RLIMIT_STACK. All bits set means unlimited.
  std::array<std::optional<std::uint64_t>, kResources> soft = {};
};

}  // namespace ivy
