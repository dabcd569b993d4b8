// SPDX-License-Identifier: Apache-2.0
// The members' own buffers, which the other members read in place and never write: registered ones
// by mapping them, others through the kernel. All members test together, once, which of the two
// methods work between them.
//
// Functions return false, or nothing, if the communicator is broken. Thread: the operation's.
#pragma once

#include <optional>

#include "comm/reduce/reduce.h"
#include "comm/transports/shm/entry_table.h"
#include "comm/transports/shm/peer_memory.h"

namespace ivy::comm {

// A copy from another member's memory.
struct PeerCopy {
  BufferLocation from;
  void* to = nullptr;
  std::size_t bytes = 0;
  Stores stores = Stores::kCached;
};

class PeerBuffers {
 public:
  PeerBuffers(SharedSegment& segment, const SharedGroupOptions& options, SharedWait& wait,
              EntryTable& entries)
      : segment_(segment),
        wait_(wait),
        policy_(wait.policy()),
        entries_(entries),
        size_(options.size()),
        self_(options.self) {}

  Probe own_probe() const { return memory_.own_probe(segment_.descriptor()); }
  // Returns the access methods that work between all members, as PeerMemory's bits. All members
  // call it in the same operations, after their entries are published. On first use they test the
  // methods and wait for each other.
  std::optional<std::uint64_t> capabilities() {
    return capabilities_ ? capabilities_ : detect_capabilities();
  }
  // Returns the result of capabilities() if it was already called.
  const std::optional<std::uint64_t>& known_capabilities() const { return capabilities_; }
  // Sets `mapped` to a member's memory in this process, or to null if that memory is not registered
  // or cannot be mapped (kCanMap).
  bool map(std::uint32_t member, const BufferLocation& location, const std::uint8_t** mapped);
  bool fetch(std::uint32_t member, const PeerCopy& copy);
  // Announces that this member has read all it needs of the others' memory. A member returns only
  // when all have announced that.
  void publish_fetched() {
    wait_.publish(segment_.member(self_).progress.fetched, entries_.number());
  }
  bool await_fetched();

 private:
  std::optional<std::uint64_t> detect_capabilities();

  SharedSegment& segment_;
  SharedWait& wait_;
  WaitPolicy& policy_;
  EntryTable& entries_;
  const std::uint32_t size_;
  const std::uint32_t self_;
  PeerMemory memory_;
  std::optional<std::uint64_t> capabilities_;
};

}  // namespace ivy::comm
