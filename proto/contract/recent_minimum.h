// SPDX-License-Identifier: Apache-2.0
// The smallest value of the last 30 to 60 s, and its time: for example, the delay of a peer's
// frames. Two half-windows: the older one is dropped when the newer one is full. Pure. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace ivy {

class RecentMinimum {
 public:
  static constexpr std::int64_t kHalfWindowNs = 30'000'000'000;

  void add(std::int64_t value_ns, std::int64_t now_ns) {
    if (!current_ || now_ns - began_ns_ > kHalfWindowNs) {
      // After a longer gap the previous half-window is too old as well.
      const bool is_recent = current_ && now_ns - began_ns_ <= 2 * kHalfWindowNs;
      previous_ = is_recent ? current_ : std::nullopt;
      current_.reset();
      began_ns_ = now_ns;
    }
    if (!current_ || value_ns <= current_->value_ns) current_ = Sample{value_ns, now_ns};
  }
  bool is_empty() const { return !current_; }
  std::int64_t value_ns() const { return smallest().value_ns; }
  std::int64_t seen_at_ns() const { return smallest().at_ns; }
  // Returns the difference between the two half-windows. If it exceeds noise, one of the clocks was
  // stopped or stepped.
  std::int64_t step_ns() const {
    return previous_ ? std::abs(current_->value_ns - previous_->value_ns) : 0;
  }

 private:
  struct Sample {
    std::int64_t value_ns;
    std::int64_t at_ns;
  };
  const Sample& smallest() const {
    return previous_ && previous_->value_ns < current_->value_ns ? *previous_ : *current_;
  }

  std::optional<Sample> current_;
  std::optional<Sample> previous_;
  std::int64_t began_ns_ = 0;
};

}  // namespace ivy
