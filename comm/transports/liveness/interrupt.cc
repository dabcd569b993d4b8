// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/liveness/interrupt.h"

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

thread_local InterruptScope* innermost = nullptr;

}  // namespace

InterruptScope::InterruptScope(const Interrupt& interrupt, const void* owner)
    : interrupt_(interrupt), owner_(owner) {
  if (interrupt_.ask == nullptr) return;
  outer_ = innermost;
  innermost = this;
}

InterruptScope::~InterruptScope() {
  if (interrupt_.ask != nullptr) innermost = outer_;
}

bool InterruptScope::is_any() { return innermost != nullptr; }

bool InterruptScope::is_to_end() {
  InterruptScope* const scope = innermost;
  if (scope == nullptr) return false;
  if (scope->is_to_end_ || scope->is_asking_) return scope->is_to_end_;
  const auto now = steady_now();
  if (!scope->asked_at_) scope->asked_at_ = now;
  if (now - *scope->asked_at_ < kPeriod) return false;
  scope->is_asking_ = true;
  scope->is_to_end_ = scope->interrupt_.ask(scope->interrupt_.context) != 0;
  scope->is_asking_ = false;
  scope->asked_at_ = steady_now();
  return scope->is_to_end_;
}

bool InterruptScope::is_asking(const void* owner) {
  for (const InterruptScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->is_asking_ && scope->owner_ == owner) return true;
  }
  return false;
}

}  // namespace ivy::comm
