// SPDX-License-Identifier: Apache-2.0
// A TCP port kept for the framework's store until the job ends. It is bound and never listened on,
// and then gets SO_REUSEADDR, so rank 0 can bind and serve it while the kernel gives it to no other
// program.
// Thread: any. Lifetime: the port is reserved as long as the object exists.
#pragma once

#include <cstdint>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

class ReservedPort {
 public:
  // Reserves a free port of the range, searching from a random start; a port that is reserved
  // already only if there is no other. Returns ResourceExhausted if all are busy. If low and high
  // are equal, reserves that port, or returns AlreadyExists with address and port. If low is 0, the
  // kernel chooses a port.
  static Result<ReservedPort> reserve(std::uint32_t low, std::uint32_t high);

  std::uint16_t port() const { return port_; }

 private:
  ReservedPort(Descriptor fd, std::uint16_t port) : fd_(std::move(fd)), port_(port) {}

  Descriptor fd_;
  std::uint16_t port_ = 0;
};

}  // namespace ivy
