// SPDX-License-Identifier: Apache-2.0
// Waits for a condition instead of sleeping: the test continues as soon as it holds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace ivy::test {

// Sanitizer runs and loaded machines set IVY_TEST_SLOW, which multiplies every deadline.
inline std::chrono::milliseconds scaled_time(std::chrono::milliseconds duration) {
  const char* factor = std::getenv("IVY_TEST_SLOW");
  return duration * std::max(factor == nullptr ? 1 : std::atoi(factor), 1);
}

// Returns true as soon as the condition holds, or false after the deadline.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds deadline = std::chrono::seconds(5)) {
  const auto end = std::chrono::steady_clock::now() + scaled_time(deadline);
  auto pause = std::chrono::microseconds(200);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return condition();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
  return true;
}

}  // namespace ivy::test
