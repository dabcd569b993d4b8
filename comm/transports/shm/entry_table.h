// SPDX-License-Identifier: Apache-2.0
// Records the operation that every member of a host is in: the first step of each operation. A
// member's *entry* holds the operation's number, its fingerprint and a few bytes; small operations
// put their data there, or into the member's *eager area* of that number's parity.
//
// Entry and eager area of operation k are free again when every member has entered k + 1, which
// begin() of operation k + 2 waits for: a member enters k + 1 only after it has read what it needs
// of k.
//
// False: the communicator is broken. Thread: the operation's.
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
        is_crowded_(options.is_crowded),
        known_(size_, 0) {}

  std::uint32_t size() const { return size_; }
  std::uint32_t self() const { return self_; }
  // Starts the next operation. Afterwards this member may write its payload and its eager area.
  bool begin() {
    // The next entry overwrites the one before the last, which is free once every member has
    // entered the last operation. If the last operation was an exchange among all, that is known.
    const bool are_all_known = !is_crowded_ && known_here_ == size_ - 1;
    if (number_ > 0 && !are_all_known && !await_all_of(number_)) return false;
    ++number_;
    known_here_ = 0;
    shown_[number_ & 1] = 0;
    return true;
  }
  // Counts this group's operations, from 1.
  std::uint64_t number() const { return number_; }
  // Call after begin(): about how many bytes members show in this operation, in the entry or, if
  // they do not fit, in the eager area. Only affects prefetching.
  void expect_shown(std::size_t bytes) { shown_[number_ & 1] = bytes; }
  std::uint8_t* own_payload() { return entry(self_, number_).payload; }
  std::uint8_t* own_eager() { return segment_.eager(self_, number_); }
  void publish();

  // Waits until that member (every member) is in this operation; compares fingerprints.
  bool await(std::uint32_t member) {
    return known_[member] >= number_ || await_entry(member, number_);
  }
  bool await_all() { return await_all_of(number_); }
  // Compares fingerprints with the members that have entered this member's last operation by now:
  // this member may have left it before they entered.
  bool compare_last();
  const std::uint8_t* payload(std::uint32_t member) const { return entry(member, number_).payload; }
  const std::uint8_t* eager(std::uint32_t member) const { return segment_.eager(member, number_); }

 private:
  EntryLine& entry(std::uint32_t member, std::uint64_t number) const {
    return segment_.member(member).entry[number & 1];
  }
  FetchedWith shown_by(std::uint32_t member, std::uint64_t number) const;
  void take_next_lines();
  bool await_entry(std::uint32_t member, std::uint64_t number);
  bool await_all_of(std::uint64_t number);
  bool await_arrivals(std::uint64_t number);

  SharedSegment& segment_;
  SharedWait& wait_;
  WaitPolicy& policy_;
  const std::uint32_t size_;
  const std::uint32_t self_;
  const bool is_crowded_;
  std::uint64_t number_ = 0;
  std::size_t shown_[2] = {0, 0};     // expect_shown(), by the number's parity.
  std::uint32_t known_here_ = 0;      // Others known to be in this operation.
  std::vector<std::uint64_t> known_;  // Highest number seen and compared, by member.
};

}  // namespace ivy::comm
