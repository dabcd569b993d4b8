// SPDX-License-Identifier: Apache-2.0
// When an operation times out.
//
// Thread: the operation's.
#pragma once

#include <chrono>

#include "proto/os/clock.h"

namespace ivy::comm {

// The clock is first read when a wait turns out to be long, because most are short.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds timeout) : timeout_(timeout) {}
  // Records the start of the operation's wait, unless it is already waiting.
  void start() {
    if (since_.count() == 0) since_ = now();
  }
  std::chrono::nanoseconds waited() {
    start();
    return now() - since_;
  }
  std::chrono::nanoseconds left() { return timeout_ - waited(); }

 private:
  static std::chrono::nanoseconds now() { return std::chrono::nanoseconds(monotonic_ns()); }

  std::chrono::nanoseconds timeout_;
  std::chrono::nanoseconds since_{0};  // Zero until it waits.
};

}  // namespace ivy::comm
