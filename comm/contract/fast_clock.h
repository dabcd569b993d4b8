// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC, cheap enough to be read twice in an operation of half a microsecond: reads the
// processor's time stamp counter, and sets itself by the system's clock about once a second. Drifts
// by less than a microsecond per second since then.
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
  double ns_per_tick_ = 0;  // 0: not yet known, or no such counter.
};

}  // namespace ivy::comm
