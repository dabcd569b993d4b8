// SPDX-License-Identifier: Apache-2.0
// The ranks of one host in one communicator, and their shared memory. Owns the parts that the
// collectives use; moves no data itself.
//
//   entries()   each member's operation, and the bytes of small operations      entry_table.h
//   slots()     slots through which larger operations pass, chunk by chunk       slot_pipeline.h
//   buffers()   the members' own memory, read in place                           peer_buffers.h
//   mail()      rings and wake-ups of messages                                   message_rings.h
//
// They share the wait for a counter (shared_wait.h), the conditions that end it early
// (wait_policy.h), and the failure that all members share (shared_failure.h).
//
// Thread: one at a time (the communicator's lock), except where noted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/transports/shm/entry_table.h"
#include "comm/transports/shm/message_rings.h"
#include "comm/transports/shm/peer_buffers.h"
#include "comm/transports/shm/shared_failure.h"
#include "comm/transports/shm/shared_members.h"
#include "comm/transports/shm/shared_segment.h"
#include "comm/transports/shm/shared_wait.h"
#include "comm/transports/shm/slot_pipeline.h"
#include "comm/transports/shm/wait_policy.h"

namespace ivy::comm {

class SharedGroup {
 public:
  // `detector` may be null and must outlive this.
  SharedGroup(std::shared_ptr<SharedSegment> segment, SharedGroupOptions options,
              FailureDetector* detector);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  std::uint32_t size() const { return entries_.size(); }
  std::uint32_t self() const { return entries_.self(); }
  const MemberName& member(std::uint32_t member) const { return options_.members[member]; }
  const SharedSelector& selector() const { return *options_.selector; }

  // Null, the default, if all ranks of the communicator are on this host. Call it before the first
  // operation.
  void set_watch(WaitWatch* watch) { policy_.set_watch(watch); }
  // Call when the communicator enters an operation, in which begin() starts one or more steps.
  // `watch` may be null, must outlive this, and is notified when the first step has started.
  void enter(const OperationShape& shape, std::uint64_t sequence, EntryWatch* watch = nullptr) {
    wait_.set_entry_watch(watch);
    policy_.enter(shape, sequence);
  }
  // Starts the next step. Returns false if the communicator is broken.
  bool begin(const OperationCall& call) {
    policy_.begin_step(call);
    return entries_.begin();
  }
  EntryTable& entries() { return entries_; }
  const EntryTable& entries() const { return entries_; }
  SlotPipeline& slots() { return slots_; }
  PeerBuffers& buffers() { return buffers_; }
  const PeerBuffers& buffers() const { return buffers_; }

  // Any thread may call mail(), has_left(), break_with(), is_broken(), failure() and take_turn().
  MessageRings& mail() { return mail_; }
  // Returns whether that member has ended its communicator. Data that it sent before remains
  // available.
  bool has_left(std::uint32_t member) const {
    return segment_->member(member).attached.load(std::memory_order_acquire) == kHasLeft;
  }
  void break_with(const Failure& failure) { failure_.break_with(failure); }
  bool is_broken() const { return failure_.is_broken(); }
  MaybeFailure failure() const { return failure_.found(); }
  // Returns true if this member should query the job's store about that operation for all members
  // that wait in it, or false if another member did so within `pause`.
  bool take_turn(std::uint64_t sequence, std::chrono::nanoseconds pause);

 private:
  const std::shared_ptr<SharedSegment> segment_;  // Shared by members that are threads (tests).
  const SharedGroupOptions options_;
  SharedFailure failure_;
  WaitPolicy policy_;
  SharedWait wait_;
  EntryTable entries_;
  SlotPipeline slots_;
  PeerBuffers buffers_;
  MessageRings mail_;
};

}  // namespace ivy::comm
