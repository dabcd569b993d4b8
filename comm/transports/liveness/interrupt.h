// SPDX-License-Identifier: Apache-2.0
// A blocking call that its caller may call off: `ask` is asked on the caller's thread while the
// call waits, never before it has waited for kPeriod. An interpreter runs its signal handlers
// there.
//
// Thread: each has its own calls under way. Lifetime: a scope is a local variable of the call.
#pragma once

#include <chrono>
#include <optional>

namespace ivy::comm {

struct Interrupt {
  int (*ask)(void* context) = nullptr;  // Not 0: the call is to end.
  void* context = nullptr;
};

class InterruptScope {
 public:
  // The time between two questions; a wait that may be called off sleeps no longer at once.
  static constexpr std::chrono::milliseconds kPeriod{25};

  // `owner` is compared only. Without an interrupt the scope is nothing.
  InterruptScope(const Interrupt& interrupt, const void* owner);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // True if this thread's call under way can be called off.
  static bool is_any();
  // True if it is to end; asks when it is time to. It stays so until the call has ended.
  static bool is_to_end();
  // True if this thread is in a signal handler that interrupts a call on that owner.
  static bool is_asking(const void* owner);

 private:
  const Interrupt interrupt_;
  const void* const owner_;
  InterruptScope* outer_ = nullptr;  // A handler may itself call.
  std::optional<std::chrono::steady_clock::time_point> asked_at_;
  bool is_asking_ = false;
  bool is_to_end_ = false;
};

}  // namespace ivy::comm
