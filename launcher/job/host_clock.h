// When a host was heard: how its clock stands to ours, and for how long it has been silent. Pure;
// thread: any, one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "proto/contract/limits.h"

namespace ivy {

// A stamp of a host's clock on the launcher's clock, and by how much it may be wrong.
struct RelatedTime {
  std::int64_t at_ns = 0;
  std::int64_t error_ns = 0;
};

class HostClock {
 public:
  // A frame that the host stamped with sent_ns, on its own clock, arrived now.
  void heard(std::uint64_t sent_ns, std::int64_t now_ns) {
    smallest_delay_ns_ = std::min(smallest_delay_ns_, now_ns - static_cast<std::int64_t>(sent_ns));
  }
  void answered(std::int64_t round_trip_ns) { round_trip_ns_ = round_trip_ns; }
  // Once something was heard. The smallest delay is the clocks' difference plus at least nothing
  // and at most a round trip.
  RelatedTime relate(std::uint64_t host_ns) const {
    return {static_cast<std::int64_t>(host_ns) + smallest_delay_ns_, round_trip_ns_};
  }

 private:
  std::int64_t smallest_delay_ns_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t round_trip_ns_ = 0;
};

class HostSilence {
 public:
  void begin(std::chrono::milliseconds lease, std::int64_t now_ns) {
    lease_ = lease;
    heard_ns_ = ticked_ns_ = now_ns;
  }
  void heard(std::int64_t now_ns) { heard_ns_ = now_ns; }
  // Call every kLauncherTick. Time in which this process itself was stopped does not count.
  void tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns_ > std::chrono::nanoseconds(4 * kLauncherTick).count())
      heard_ns_ += now_ns - ticked_ns_;
    ticked_ns_ = now_ns;
  }
  std::int64_t last_heard_ns() const { return heard_ns_; }
  std::chrono::milliseconds lease() const { return lease_; }
  bool is_over(std::int64_t now_ns) const { return now_ns - heard_ns_ > lease_ns(); }
  // Half the lease of silence: another way is to be tried while the old one stays open. A way that
  // is new has a quarter of the lease to bring an answer.
  bool wants_another_way(std::int64_t now_ns, std::int64_t way_since_ns) const {
    return now_ns - heard_ns_ > lease_ns() / 2 && now_ns - way_since_ns > lease_ns() / 4;
  }

 private:
  std::int64_t lease_ns() const { return std::chrono::nanoseconds(lease_).count(); }

  std::chrono::milliseconds lease_{0};
  std::int64_t heard_ns_ = 0;
  std::int64_t ticked_ns_ = 0;
};

}  // namespace ivy
