// SPDX-License-Identifier: Apache-2.0
// Finds out in which order workers have ended. A later look finds them all ended, and waitid names
// them in the order of their start; the kernel's ready list of an epoll has them in the order in
// which they ended. Thread: the loop's.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/os/descriptor.h"

namespace ivy {

class ExitOrder {
 public:
  ExitOrder();

  // Watches a pidfd, which stays the caller's.
  void watch(int pidfd, std::uint32_t worker);
  // Returns those that have ended since the last call, in the order of their ends.
  std::vector<std::uint32_t> take();

 private:
  Descriptor epoll_;  // None: it could not be made, and the order stays unknown.
};

}  // namespace ivy
