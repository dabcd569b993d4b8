// The two clocks. Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace ivy {

inline std::uint64_t time_of(clockid_t clock) {
  std::timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}
// For durations: never set, and the same for all processes of a host.
inline std::uint64_t monotonic_ns() { return time_of(CLOCK_MONOTONIC); }
// Since 1970; may be set forwards and backwards.
inline std::uint64_t wall_ns() { return time_of(CLOCK_REALTIME); }
// The same as points in time, for deadlines: of our own, and of libraries that ask for wall time.
inline std::chrono::steady_clock::time_point steady_now() {
  return std::chrono::steady_clock::now();
}
inline std::chrono::system_clock::time_point system_now() {
  return std::chrono::system_clock::now();
}
inline std::int64_t wall_s() { return static_cast<std::int64_t>(std::time(nullptr)); }

}  // namespace ivy
