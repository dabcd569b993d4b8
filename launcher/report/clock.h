// This machine's monotonic clock, as every deadline and every stamp uses it. Thread: any.
#pragma once

#include <chrono>
#include <cstdint>

namespace ivy {

inline std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace ivy
