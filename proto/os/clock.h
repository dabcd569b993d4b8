// SPDX-License-Identifier: Apache-2.0
// Monotonic and wall-clock time. Thread: any.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace ivy {

inline std::int64_t time_of(clockid_t clock) {
  std::timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
// For durations and deadlines: never stepped, and the same in all processes of a host.
inline std::int64_t monotonic_ns() { return time_of(CLOCK_MONOTONIC); }
// Time since 1970; may be stepped forwards and backwards.
inline std::int64_t wall_ns() { return time_of(CLOCK_REALTIME); }
inline std::int64_t wall_ms() { return wall_ns() / 1'000'000; }
inline std::int64_t wall_s() { return wall_ns() / 1'000'000'000; }
// For ivyrun's deadlines.
inline std::chrono::steady_clock::time_point steady_now() {
  return std::chrono::steady_clock::now();
}
// For libraries that use wall time.
inline std::chrono::system_clock::time_point system_now() {
  return std::chrono::system_clock::now();
}
// Returns the timeout with which poll() wakes up at the deadline: never before it, unless it is
// more than 24 days away.
inline int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

}  // namespace ivy
