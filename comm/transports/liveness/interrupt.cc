// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/liveness/interrupt.h"

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

thread_local InterruptScope* innermost = nullptr;

}  // namespace

InterruptScope::InterruptScope(const Interrupt& interrupt, const void* owner)
    : interrupt_(interrupt), owner_(owner) {
  if (interrupt_.check == nullptr) return;
  outer_ = innermost;
  innermost = this;
}

InterruptScope::~InterruptScope() {
  if (interrupt_.check != nullptr) innermost = outer_;
}

bool InterruptScope::is_any() { return innermost != nullptr; }

bool InterruptScope::is_to_end() {
  InterruptScope* const scope = innermost;
  if (scope == nullptr) return false;
  if (scope->is_to_end_ || scope->is_checking_) return scope->is_to_end_;
  const auto now = steady_now();
  if (!scope->checked_at_) scope->checked_at_ = now;
  if (now - *scope->checked_at_ < kPeriod) return false;
  scope->is_checking_ = true;
  scope->is_to_end_ = scope->interrupt_.check(scope->interrupt_.context) != 0;
  scope->is_checking_ = false;
  scope->checked_at_ = steady_now();
  return scope->is_to_end_;
}

bool InterruptScope::is_checking(const void* owner) {
  for (const InterruptScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->is_checking_ && scope->owner_ == owner) return true;
  }
  return false;
}

}  // namespace ivy::comm
