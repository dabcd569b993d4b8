// SPDX-License-Identifier: Apache-2.0
// The slots through which data that is too large for an entry passes, in *chunks*. Each member
// fills its own slots, and the others read them. All members count the same chunks since the
// communicator was created, whether or not a member has data in a chunk. A member's ProgressLine
// has its counts.
//
// The slot of chunk c is free again when every member has drained chunk c; await_room(c +
// kSlotsPerMember) waits for that.
//
// Functions return false if the communicator is broken. Thread: the operation's.
#pragma once

#include <utility>
#include <vector>

#include "comm/transports/shm/shared_members.h"
#include "comm/transports/shm/shared_segment.h"
#include "comm/transports/shm/shared_wait.h"

namespace ivy::comm {

class SlotPipeline {
 public:
  SlotPipeline(SharedSegment& segment, const SharedGroupOptions& options, SharedWait& wait)
      : segment_(segment), wait_(wait), self_(options.self), known_drained_(options.size(), 0) {}

  // Allocates the next `count` chunks and returns the first one's number, which is the same on
  // every member.
  std::uint64_t take(std::uint64_t count) {
    return std::exchange(next_chunk_, next_chunk_ + count);
  }
  std::uint8_t* slot(std::uint32_t member, std::uint64_t chunk) const {
    return segment_.slot(member, chunk);
  }
  std::uint8_t* own_slot(std::uint64_t chunk) const { return segment_.slot(self_, chunk); }

  // Waits until this member may write to its slot of that chunk.
  bool await_room(std::uint64_t chunk) {
    if (chunk < kSlotsPerMember) return true;
    const std::uint64_t needed = chunk - kSlotsPerMember + 1;
    for (std::uint32_t member = 0; member < known_drained_.size(); ++member) {
      if (member == self_ || known_drained_[member] >= needed) continue;
      const std::atomic<std::uint64_t>& drained = progress(member).drained;
      if (!wait_.await(drained, needed, member)) return false;
      // Acquire, because the count may have grown since: later chunks rely on it without a wait.
      known_drained_[member] = drained.load(std::memory_order_acquire);
    }
    return true;
  }
  void publish_filled(std::uint64_t chunk) { wait_.publish(progress(self_).filled, chunk + 1); }
  void publish_reduced(std::uint64_t chunk) { wait_.publish(progress(self_).reduced, chunk + 1); }
  void publish_drained(std::uint64_t chunk) { wait_.publish(progress(self_).drained, chunk + 1); }
  // Returns the number of chunks that this member has filled so far, in all operations.
  std::uint64_t filled() const { return progress(self_).filled.load(std::memory_order_relaxed); }
  bool await_filled(std::uint32_t member, std::uint64_t chunk) {
    return wait_.await(progress(member).filled, chunk + 1, member);
  }
  bool await_reduced(std::uint32_t member, std::uint64_t chunk) {
    return wait_.await(progress(member).reduced, chunk + 1, member);
  }

 private:
  ProgressLine& progress(std::uint32_t member) const { return segment_.member(member).progress; }

  SharedSegment& segment_;
  SharedWait& wait_;
  const std::uint32_t self_;
  std::uint64_t next_chunk_ = 0;
  // Number of chunks of each member that are known to be drained.
  std::vector<std::uint64_t> known_drained_;
};

}  // namespace ivy::comm
