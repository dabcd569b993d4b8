// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/fast_clock.h"

#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace ivy::comm {
namespace {

// Duration of the measurement of the tick rate, and time after which the clock is adjusted again.
constexpr std::uint64_t kMeasuredNs = 2'000'000;
constexpr double kHoldsNs = 1e9;

std::uint64_t clock_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Returns the time stamp counter, or 0 if it does not run at a constant rate in every processor
// state.
std::uint64_t ticks() {
#if defined(__x86_64__)
  static const bool is_steady = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
  }();
  return is_steady ? __rdtsc() : 0;
#else
  return 0;
#endif
}

struct BothClocks {
  std::uint64_t ns = 0;
  std::uint64_t ticks = 0;
};

// Reads both clocks at the same time. The process may be preempted between two readings, which
// would falsify the rate for a second, so the closest readings of several count.
BothClocks read_both() {
  constexpr int kAttempts = 4;
  BothClocks best;
  std::uint64_t least = ~std::uint64_t{0};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::uint64_t before = ticks();
    const std::uint64_t ns = clock_ns();
    const std::uint64_t passed = ticks() - before;
    if (passed >= least) continue;
    least = passed;
    best = {ns, before + passed / 2};
  }
  return best;
}

}  // namespace

FastClock::FastClock() {
  const BothClocks now = read_both();
  set_ns_ = now.ns;
  set_ticks_ = now.ticks;
}

std::uint64_t FastClock::set() {
  const std::uint64_t ns = clock_ns();
  if (ticks() == 0 || ns - set_ns_ < kMeasuredNs) return ns;
  const BothClocks now = read_both();
  if (now.ticks > set_ticks_) {
    ns_per_tick_ =
        static_cast<double>(now.ns - set_ns_) / static_cast<double>(now.ticks - set_ticks_);
    set_ticks_ = now.ticks;
    set_ns_ = now.ns;
  }
  return now.ns;
}

std::uint64_t FastClock::now_ns() {
  if (ns_per_tick_ == 0) return set();
  // A counter that jumps back (after a migration to another machine) yields a huge number here.
  const double since = static_cast<double>(ticks() - set_ticks_) * ns_per_tick_;
  if (since > kHoldsNs) return set();
  return set_ns_ + static_cast<std::uint64_t>(since);
}

}  // namespace ivy::comm
