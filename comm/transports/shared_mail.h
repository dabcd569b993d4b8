// Messages between the members of one host, as far as the segment carries them: where the ring
// between two members is, and the bell that says that a ring was written to or read from.
//
// Thread: any.
#pragma once

#include <chrono>

#include "comm/transports/shared_segment.h"

namespace ivy::comm {

class SharedMail {
 public:
  SharedMail(SharedSegment& segment, std::uint32_t self) : segment_(segment), self_(self) {}

  std::uint32_t self() const { return self_; }
  RingPlace ring_to(std::uint32_t member) const { return segment_.ring(self_, member); }
  RingPlace ring_from(std::uint32_t member) const { return segment_.ring(member, self_); }

  // Read it before looking at the rings; sleep() returns at once if anything came since.
  std::uint32_t bell() const {
    return segment_.member(self_).mail.doorbell.load(std::memory_order_acquire);
  }
  void sleep(std::uint32_t bell, std::chrono::nanoseconds at_most);
  // Tells that member that a ring between the two was written to or read from.
  void ring(std::uint32_t member) { ring(segment_.member(member).mail); }
  static void ring(SleepLine& line);

 private:
  SharedSegment& segment_;
  const std::uint32_t self_;
};

}  // namespace ivy::comm
