// SPDX-License-Identifier: Apache-2.0
// Records the operation that each member of a host is in; this is the first step of every
// operation. A member's *entry* has the operation's number, its fingerprint and a few bytes. Small
// operations put their data there, or into one of the member's two *eager areas*, selected by the
// parity of the number.
//
// Entry and eager area of operation k are free again when every member has entered k + 1, because a
// member enters k + 1 only after it has read its data of k. begin() of operation k + 2 waits for
// that.
//
// Functions return false if the communicator is broken. Thread: the operation's.
#pragma once

#include <vector>

#include "comm/transports/shm/shared_members.h"
#include "comm/transports/shm/shared_segment.h"
#include "comm/transports/shm/shared_wait.h"
#include "comm/transports/shm/wait_policy.h"

namespace ivy::comm {

class EntryTable {
 public:
  EntryTable(SharedSegment& segment, const SharedGroupOptions& options, SharedWait& wait)
      : segment_(segment),
        wait_(wait),
        policy_(wait.policy()),
        size_(options.size()),
        self_(options.self),
        is_overloaded_(options.is_overloaded),
        known_(size_, 0) {}

  std::uint32_t size() const { return size_; }
  std::uint32_t self() const { return self_; }
  // Starts the next operation. Afterwards this member may write its payload and its eager area.
  bool begin() {
    // The next entry overwrites the one before the last, which is free once every member has
    // entered the last operation. That is already known if this member has awaited all the others
    // in the last operation.
    const bool are_all_known = !is_overloaded_ && known_here_ == size_ - 1;
    if (number_ > 0 && !are_all_known && !await_all_of(number_)) return false;
    ++number_;
    known_here_ = 0;
    expected_bytes_[number_ & 1] = 0;
    return true;
  }
  // The number of this group's operation, from 1.
  std::uint64_t number() const { return number_; }
  // Call after begin(). `bytes` is about how much members publish in this operation, in the entry
  // or, if it does not fit, in the eager area. Only affects prefetching.
  void expect_bytes(std::size_t bytes) { expected_bytes_[number_ & 1] = bytes; }
  std::uint8_t* own_payload() { return entry(self_, number_).payload; }
  std::uint8_t* own_eager() { return segment_.eager(self_, number_); }
  void publish();

  // Wait until that member (or every member) is in this operation, and compare fingerprints.
  bool await(std::uint32_t member) {
    return known_[member] >= number_ || await_entry(member, number_);
  }
  bool await_all() { return await_all_of(number_); }
  // Compares fingerprints with the members that have entered this member's last operation by now,
  // because this member may have left it before they entered.
  bool compare_last();
  const std::uint8_t* payload(std::uint32_t member) const { return entry(member, number_).payload; }
  const std::uint8_t* eager(std::uint32_t member) const { return segment_.eager(member, number_); }

 private:
  EntryLine& entry(std::uint32_t member, std::uint64_t number) const {
    return segment_.member(member).entry[number & 1];
  }
  FetchedWith prefetch_of(std::uint32_t member, std::uint64_t number) const;
  void take_next_lines();
  bool await_entry(std::uint32_t member, std::uint64_t number);
  bool await_all_of(std::uint64_t number);
  bool await_arrivals(std::uint64_t number);

  SharedSegment& segment_;
  SharedWait& wait_;
  WaitPolicy& policy_;
  const std::uint32_t size_;
  const std::uint32_t self_;
  const bool is_overloaded_;
  std::uint64_t number_ = 0;
  std::size_t expected_bytes_[2] = {0, 0};  // Arguments of expect_bytes(), by the number's parity.
  std::uint32_t known_here_ = 0;      // Number of other members known to be in this operation.
  std::vector<std::uint64_t> known_;  // Highest number of each member that was seen and compared.
};

}  // namespace ivy::comm
