// SPDX-License-Identifier: Apache-2.0
// Holds the first failure that was found, the reason why a communicator is broken; and the
// interface through which its parts break it.
//
// Thread: any.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "comm/contract/failure.h"

namespace ivy::comm {

// Breaks a communicator. Implemented by Communicator, and called by its parts that find failures on
// their own threads.
class FailureHandler {
 public:
  virtual ~FailureHandler() = default;
  // Breaks the communicator on every rank. Returns the failure that all of them report, which
  // another rank may have found.
  virtual Failure break_all(const Failure& found) = 0;
};

class FirstFailure {
 public:
  bool is_set() const { return __builtin_expect(is_set_.load(std::memory_order_acquire), false); }
  MaybeFailure get() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Returns whether it is the first one; otherwise sets `failure` to the first one.
  bool set(Failure& failure) {
    const std::lock_guard lock(mutex_);
    const bool is_first = !failure_.has_value();
    if (is_first) failure_ = failure;
    failure = *failure_;
    is_set_.store(true, std::memory_order_release);
    return is_first;
  }
  // Adds to the text of the failure, once.
  void add_text(const std::string& text) {
    const std::lock_guard lock(mutex_);
    const std::string before = failure_->text;
    if (before.find(text) != std::string::npos) return;
    Failure longer = *failure_;
    set_text(longer, before + "; " + text);
    failure_ = longer;
  }

 private:
  mutable std::mutex mutex_;  // Guards failure_. is_set_ is read without it.
  MaybeFailure failure_;
  std::atomic<bool> is_set_{false};
};

}  // namespace ivy::comm
