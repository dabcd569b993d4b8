// SPDX-License-Identifier: Apache-2.0
// The mapping of one communicator's shared memory in this process.
//
// Lifetime: the kernel frees the memory with the last mapping. It has a name only from
// create_named() until unlink_name() or until any process unmaps it. Thread: any; const after
// construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/transports/shm/shared_layout.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::comm {

// Location of a ring, or of one that can be created.
struct RingLocation {
  RingEntry& entry;
  std::atomic<std::uint32_t>& rings_made;
  std::size_t ring_count = 0;
  int descriptor = -1;
  std::size_t offset = 0;  // Offset of the first ring.
};

class SharedSegment {
 public:
  // Creates zeroed memory without a name for that many members, with its pages reserved and its
  // header written. The descriptor can be passed on. Fails with ResourceExhausted, naming the size,
  // if there is not enough memory.
  static Result<std::unique_ptr<SharedSegment>> create(std::uint32_t member_count);
  // As create(), but the memory is a file, for peers that cannot get a descriptor. The file's name
  // exists until any process calls unlink_name(). `path` comes from new_path(); others may learn it
  // before, to remove it if this process dies.
  static Result<std::unique_ptr<SharedSegment>> create_named(std::uint32_t member_count,
                                                             const std::string& path = new_path());
  static std::string new_path();
  // Attaches a segment that another process has created. Takes ownership of the descriptor. Fails
  // with DataLoss if the memory is not a segment, and with FailedPrecondition if it belongs to a
  // build with another protocol (comm/contract/protocol.h).
  static Result<std::unique_ptr<SharedSegment>> attach(int descriptor, std::uint32_t member_count);
  // As attach(), for the path() of the segment. Fails with Unavailable if it cannot be opened.
  static Result<std::unique_ptr<SharedSegment>> attach_path(const std::string& path,
                                                            std::uint32_t member_count);
  // As create(), in memory that the supervisor has reserved, with a second file for the rings.
  // Every member calls it, and all write the same header. Takes ownership of both descriptors.
  // Fails like attach().
  static Result<std::unique_ptr<SharedSegment>> adopt(int descriptor, int rings_descriptor,
                                                      std::uint32_t member_count);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory_); }
  MemberBlock& member(std::size_t index) const {
    return *reinterpret_cast<MemberBlock*>(memory_ + geometry_.member_offset(index));
  }
  RingLocation ring(std::size_t from, std::size_t to) const {
    return {*reinterpret_cast<RingEntry*>(memory_ + geometry_.ring_offset(from, to)),
            header().rings_made, geometry_.ring_count(),
            rings_descriptor_ ? rings_descriptor_.get() : descriptor_.get(),
            rings_descriptor_ ? 0 : geometry_.rings_offset()};
  }
  std::uint8_t* eager(std::size_t index, std::uint64_t sequence) const {
    return memory_ + geometry_.data_offset(index) + (sequence & 1) * kEagerBytes;
  }
  std::uint8_t* slot(std::size_t index, std::uint64_t chunk) const {
    return memory_ + geometry_.data_offset(index) + 2 * kEagerBytes +
           chunk % kSlotsPerMember * kSlotBytes;
  }
  int descriptor() const { return descriptor_.get(); }
  std::uint32_t member_count() const { return geometry_.member_count; }
  // Returns a path by which another process of this user can open it: "/proc/PID/fd/N", or the
  // name.
  std::string path() const;
  // Removes the name, if there is one. Call it only when all members have attached the segment.
  void unlink_name();

 private:
  SharedSegment(std::uint8_t* memory, Descriptor descriptor, std::uint32_t member_count);
  static Result<std::unique_ptr<SharedSegment>> map(Descriptor descriptor,
                                                    std::uint32_t member_count);
  Result<void> write_header();

  std::uint8_t* memory_;
  Descriptor descriptor_;
  Descriptor rings_descriptor_;  // None if the rings are in the same file.
  SegmentGeometry geometry_;
  std::string name_;  // Its path, or empty.
};

}  // namespace ivy::comm
