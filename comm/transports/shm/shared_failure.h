// SPDX-License-Identifier: Apache-2.0
// The reason why a communicator is broken, shared by all its members on one host. The first member
// that finds a failure writes it into its own block of the segment, and the header names that
// member. All others read it there.
//
// Thread: any.
#pragma once

#include <mutex>
#include <optional>

#include "comm/contract/failure.h"
#include "comm/transports/shm/shared_segment.h"

namespace ivy::comm {

class SharedFailure {
 public:
  SharedFailure(SharedSegment& segment, std::uint32_t self) : segment_(segment), self_(self) {}

  // Breaks the communicator for every member of this host, unless it is already broken, and wakes
  // all that sleep in collectives or messages.
  void break_with(const Failure& failure);
  // Cheap enough to be called before every operation.
  bool is_broken() const { return state().load(std::memory_order_relaxed) != 0; }
  // Returns nothing if the communicator is not broken.
  MaybeFailure found() const;

 private:
  std::atomic<std::uint32_t>& state() const { return segment_.header().failure_state; }

  SharedSegment& segment_;
  const std::uint32_t self_;
  std::mutex finding_;  // Guards this member's record until it is published.
};

}  // namespace ivy::comm
