// SPDX-License-Identifier: Apache-2.0
// The slots through which data too large for an entry go, in *chunks*: each member fills slots of
// its own, the others read them. Chunks are counted through the communicator's life, equally by all
// members, whether a member has data in a chunk or not; each count is one of a member's progress.
//
// The slot of chunk c is free again when every member has drained chunk c, which await_room(c +
// kSlotsPerMember) waits for.
//
// False: the communicator is broken. Thread: the operation's.
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

  // The number of the next `count` chunks' first one; every member takes the same.
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
      known_drained_[member] = drained.load(std::memory_order_relaxed);
    }
    return true;
  }
  void publish_filled(std::uint64_t chunk) { wait_.publish(progress(self_).filled, chunk + 1); }
  void publish_reduced(std::uint64_t chunk) { wait_.publish(progress(self_).reduced, chunk + 1); }
  void publish_drained(std::uint64_t chunk) { wait_.publish(progress(self_).drained, chunk + 1); }
  // How many chunks this member has filled so far, in all operations.
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
  std::vector<std::uint64_t> known_drained_;  // Chunks known to be drained, by member.
};

}  // namespace ivy::comm
