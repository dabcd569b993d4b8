// SPDX-License-Identifier: Apache-2.0
// Limits log lines that unauthenticated peers can cause: writes a few per tick and counts the
// others.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace ivy::store {

class LimitedLog {
 public:
  explicit LimitedLog(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  void operator()(const std::string& line) {
    if (write_ == nullptr) return;
    if (left_ > 0) {
      --left_;
      write_(line);
    } else {
      ++dropped_;
    }
  }
  void tick() {
    left_ = kLinesPerTick;
    if (dropped_ > 0)
      (*this)("and " + std::to_string(std::exchange(dropped_, 0)) + " more such lines");
  }

 private:
  static constexpr int kLinesPerTick = 4;
  const std::function<void(const std::string&)> write_;
  int left_ = kLinesPerTick;
  std::size_t dropped_ = 0;
};

}  // namespace ivy::store
