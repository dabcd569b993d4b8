// SPDX-License-Identifier: Apache-2.0
// A monotonic clock that is cheap enough to be read twice in an operation of half a microsecond. It
// reads the processor's time stamp counter and adjusts to CLOCK_MONOTONIC about once a second.
// Between adjustments, after its first second, it drifts by less than a microsecond per second.
//
// Thread: one at a time.
#pragma once

#include <cstdint>

namespace ivy::comm {

class FastClock {
 public:
  FastClock();
  std::uint64_t now_ns();

 private:
  std::uint64_t set();

  std::uint64_t set_ticks_ = 0;
  std::uint64_t set_ns_ = 0;
  double ns_per_tick_ = 0;  // 0 if not yet known or if the processor has no usable counter.
};

}  // namespace ivy::comm
