// SPDX-License-Identifier: Apache-2.0
// Determines the order in which workers exited. When several have exited, waitid() returns them in
// the order of their start, but the ready list of an epoll has them in the order of their exits.
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/os/descriptor.h"

namespace ivy {

class ExitOrder {
 public:
  ExitOrder();

  // Watches a pidfd, which the caller still owns.
  void watch(int pidfd, std::uint32_t worker);
  // Returns the workers that have exited since the last call, in the order of their exits.
  std::vector<std::uint32_t> take();

 private:
  Descriptor epoll_;  // Empty if it could not be created; the order then remains unknown.
};

}  // namespace ivy
