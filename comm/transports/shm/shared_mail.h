// SPDX-License-Identifier: Apache-2.0
// Messages between the members of one host, as far as the segment carries them: where the ring
// between two members is, the bell that says that a ring was written to or read from, and how far
// another member's own memory can be read.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>

#include "comm/transports/shm/shared_segment.h"

namespace ivy::comm {

class SharedMail {
 public:
  SharedMail(SharedSegment& segment, std::uint32_t self) : segment_(segment), self_(self) {}

  std::uint32_t self() const { return self_; }
  RingPlace ring_to(std::uint32_t member) const { return segment_.ring(self_, member); }
  RingPlace ring_from(std::uint32_t member) const { return segment_.ring(member, self_); }

  // True if the memory of that member, which has sent something, can be read from here.
  bool can_read(std::uint32_t member) const;
  // False: it cannot, or not so many bytes of it.
  bool read(std::uint32_t member, void* to, std::uint64_t address, std::size_t bytes) const;

  // Read it before checking the rings; sleep() returns immediately if anything arrived since.
  std::uint32_t bell() const {
    return segment_.member(self_).mail.doorbell.load(std::memory_order_acquire);
  }
  void sleep(std::uint32_t bell, std::chrono::nanoseconds at_most);
  // Between the two a thread of this member looks at the rings by itself, so that no other one is
  // woken for them. `bell`: as it was before the last look.
  void begin_looking();
  void end_looking(std::uint32_t bell);

  // Tells that member that a ring between the two was written to or read from.
  void ring(std::uint32_t member) { ring(segment_.member(member).mail); }
  // Wakes all threads of this member that sleep, also while one looks.
  void wake() { wake(segment_.member(self_).mail); }
  static void ring(SleepLine& line);
  static void wake(SleepLine& line);

 private:
  SharedSegment& segment_;
  const std::uint32_t self_;
};

// A thread that looks, for as long as this lives.
class Looking {
 public:
  explicit Looking(SharedMail* mail) : mail_(mail) { begin(); }
  ~Looking() { end(); }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

  // Called before each look at the rings.
  void look() { notifier_ = mail_ != nullptr ? mail_->bell() : 0; }
  // As it was before the last look.
  std::uint32_t bell() const { return notifier_; }
  // True if anything arrived since then.
  bool has_missed() const { return mail_ != nullptr && mail_->bell() != notifier_; }
  // Sleep only between end() and begin().
  void begin() {
    if (mail_ != nullptr) mail_->begin_looking();
  }
  void end() {
    if (mail_ != nullptr) mail_->end_looking(notifier_);
  }

 private:
  SharedMail* const mail_;  // Null: no rings.
  std::uint32_t notifier_ = 0;
};

}  // namespace ivy::comm
