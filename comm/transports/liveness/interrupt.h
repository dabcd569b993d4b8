// SPDX-License-Identifier: Apache-2.0
// Blocking calls that their caller can interrupt. While a call waits, it calls `check` on the
// caller's thread every kPeriod, for the first time after kPeriod. An interpreter runs its signal
// handlers there.
//
// Thread: any; each has its own scopes. Lifetime: a scope is a local variable of the call.
#pragma once

#include <chrono>
#include <optional>

namespace ivy::comm {

struct Interrupt {
  int (*check)(void* context) = nullptr;  // Returns 0 to continue, anything else to end the call.
  void* context = nullptr;
};

class InterruptScope {
 public:
  // Interval between calls of `check`, and the longest sleep of a wait that can be interrupted.
  static constexpr std::chrono::milliseconds kPeriod{25};

  // `owner` is only compared. Without an interrupt the scope has no effect.
  InterruptScope(const Interrupt& interrupt, const void* owner);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Returns whether this thread's current call can be interrupted.
  static bool is_any();
  // Returns whether the current call must end; calls `check` if kPeriod has passed. Once true, it
  // remains true until the call has ended.
  static bool is_to_end();
  // Returns whether this thread is inside `check`, and so in a signal handler, of a call on
  // `owner`.
  static bool is_checking(const void* owner);

 private:
  const Interrupt interrupt_;
  const void* const owner_;
  InterruptScope* outer_ = nullptr;  // Set because a signal handler may make a call itself.
  std::optional<std::chrono::steady_clock::time_point> checked_at_;
  bool is_checking_ = false;
  bool is_to_end_ = false;
};

}  // namespace ivy::comm
