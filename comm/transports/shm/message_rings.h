// SPDX-License-Identifier: Apache-2.0
// Messages between the members of a host: the rings in the shared segment, wake-ups when a ring was
// written to or read from, and direct reads of another member's memory.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>

#include "comm/transports/shm/shared_segment.h"

namespace ivy::comm {

class MessageRings {
 public:
  MessageRings(SharedSegment& segment, std::uint32_t self) : segment_(segment), self_(self) {}

  std::uint32_t self() const { return self_; }
  RingLocation ring_to(std::uint32_t member) const { return segment_.ring(self_, member); }
  RingLocation ring_from(std::uint32_t member) const { return segment_.ring(member, self_); }

  // Returns whether this process can read the memory of that member, which must have sent something
  // before.
  bool can_read(std::uint32_t member) const;
  // Returns false if not all of these bytes could be read.
  bool read(std::uint32_t member, void* to, std::uint64_t address, std::size_t bytes) const;

  // Returns the number of wake-ups of this member. Read it before checking the rings; sleep()
  // returns immediately if it has changed since.
  std::uint32_t wake_count() const {
    return segment_.member(self_).mail.wake_count.load(std::memory_order_acquire);
  }
  void sleep(std::uint32_t seen_count, std::chrono::nanoseconds at_most);
  // Between these calls, a thread of this member polls the rings, so that notify() need not wake
  // another one. `seen_count` is the number of wake-ups before its last check.
  void begin_polling();
  void end_polling(std::uint32_t seen_count);
  // Notifies that member that a ring between the two was written to or read from.
  void notify(std::uint32_t member) { notify(segment_.member(member).mail); }
  // Wakes all sleeping threads of this member, even while one polls.
  void wake_all() { wake_all(segment_.member(self_).mail); }
  static void notify(SleepLine& line);
  static void wake_all(SleepLine& line);

 private:
  SharedSegment& segment_;
  const std::uint32_t self_;
};

// Keeps this member's other threads asleep while one thread polls the rings.
class PollingScope {
 public:
  // `mail` is null if there are no rings.
  explicit PollingScope(MessageRings* mail) : mail_(mail) { begin(); }
  ~PollingScope() { end(); }
  PollingScope(const PollingScope&) = delete;
  PollingScope& operator=(const PollingScope&) = delete;

  // Call it before each check of the rings.
  void note_wake_count() { seen_count_ = mail_ != nullptr ? mail_->wake_count() : 0; }
  // Returns the number of wake-ups before the last check.
  std::uint32_t seen_count() const { return seen_count_; }
  // Returns whether anything has arrived since that check.
  bool has_missed() const { return mail_ != nullptr && mail_->wake_count() != seen_count_; }

  // Sleep only between end() and begin().
  void begin() {
    if (mail_ != nullptr) mail_->begin_polling();
  }
  void end() {
    if (mail_ != nullptr) mail_->end_polling(seen_count_);
  }

 private:
  MessageRings* const mail_;
  std::uint32_t seen_count_ = 0;
};

}  // namespace ivy::comm
