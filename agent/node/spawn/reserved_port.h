// SPDX-License-Identifier: Apache-2.0
// A TCP port kept for the framework's own store until the job ends: bound with SO_REUSEADDR and
// never listened on, so rank 0 can bind and serve on it while the kernel gives it to no other
// program.
// Thread: any. Lifetime: the port is ours as long as the object lives.
#pragma once

#include <cstdint>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

class ReservedPort {
 public:
  // low == 0: the kernel chooses. low == high: that port, or AlreadyExists naming address and port.
  // Otherwise the first free one, from a random place in the range; ResourceExhausted when all are
  // busy.
  static Result<ReservedPort> reserve(std::uint32_t low, std::uint32_t high);

  std::uint16_t port() const { return port_; }

 private:
  ReservedPort(Descriptor fd, std::uint16_t port) : fd_(std::move(fd)), port_(port) {}

  Descriptor fd_;
  std::uint16_t port_ = 0;
};

}  // namespace ivy
