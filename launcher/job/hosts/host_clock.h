// SPDX-License-Identifier: Apache-2.0
// Two measures of one host's connection: the difference of its clock from the launcher's
// (HostClock), and how long it has been silent (HostSilence). Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include "proto/contract/limits.h"
#include "proto/contract/recent_minimum.h"

namespace ivy {

// A time of a host's clock, converted to the launcher's clock, and its largest error.
struct RelatedTime {
  std::int64_t at_ns = 0;
  std::int64_t error_ns = 0;
};

// Relates a host's CLOCK_MONOTONIC to the launcher's, as NTP does (RFC 5905, section 8). The
// apparent delay of a frame is the difference of the clocks plus the time that it travelled, so the
// smallest apparent delays of both directions bound the difference. Only the last minute counts,
// because clocks drift and virtual machines are paused; the error grows with the age of the
// measurements.
class HostClock {
 public:
  // Bound on the relative drift of two clocks; crystals without NTP stay within 100 parts per
  // million.
  static constexpr std::int64_t kDriftDivisor = 10'000;

  // A frame arrived now; the host stamped it with sent_ns, on its own clock.
  void received(std::uint64_t sent_ns, std::int64_t now_ns) {
    up_.add(now_ns - static_cast<std::int64_t>(sent_ns), now_ns);
  }
  // The smallest apparent delay of the launcher's frames at the host, as its heartbeats report it.
  void peer_delay(std::int64_t delay_ns, std::int64_t now_ns) { down_.add(delay_ns, now_ns); }
  // An Attach was answered after this time. The first answer includes the start of the supervisor.
  void answered(std::int64_t round_trip_ns) {
    round_trip_ns_ = std::min(round_trip_ns_, round_trip_ns);
  }
  // Converts a stamp of the host. Call after received(). Stamps of one host keep their order, even
  // if the measured difference changes between two of them.
  RelatedTime relate(std::uint64_t host_ns, std::int64_t now_ns) {
    const std::int64_t stamp = static_cast<std::int64_t>(host_ns);
    RelatedTime related = relation(now_ns);
    related.at_ns += stamp;
    if (last_) {
      if (stamp > last_->host_ns) related.at_ns = std::max(related.at_ns, last_->at_ns + 1);
      if (stamp < last_->host_ns) related.at_ns = std::min(related.at_ns, last_->at_ns - 1);
      if (stamp == last_->host_ns) related.at_ns = last_->at_ns;
    }
    last_ = Stamp{stamp, related.at_ns};
    return related;
  }

  // Converts a time of the launcher's clock to the host's, for a deadline that the host may be
  // told.
  std::int64_t host_time(std::int64_t at_ns, std::int64_t now_ns) const {
    return at_ns - relation(now_ns).at_ns;
  }

 private:
  struct Stamp {
    std::int64_t host_ns;
    std::int64_t at_ns;
  };

  // Returns the number to add to a stamp of the host, and the error of the sum.
  RelatedTime relation(std::int64_t now_ns) const {
    const std::int64_t up = up_.value_ns();
    std::int64_t oldest_ns = up_.seen_at_ns();
    RelatedTime result{up, round_trip_ns_};  // The frame travelled for at most a round trip.
    if (!down_.is_empty() && up + down_.value_ns() >= 0 && up + down_.value_ns() < round_trip_ns_) {
      result = {(up - down_.value_ns()) / 2, (up + down_.value_ns()) / 2};
      oldest_ns = std::min(oldest_ns, down_.seen_at_ns());
    }
    result.error_ns += (now_ns - oldest_ns) / kDriftDivisor + up_.step_ns();
    return result;
  }

  RecentMinimum up_;
  RecentMinimum down_;
  std::int64_t round_trip_ns_ = std::numeric_limits<std::int64_t>::max() / 4;
  std::optional<Stamp> last_;
};

// How long a host has been silent, compared with its lease.
class HostSilence {
 public:
  void begin(std::chrono::milliseconds lease, std::int64_t now_ns) {
    lease_ = lease;
    received_ns_ = ticked_ns_ = now_ns;
  }
  void received(std::int64_t now_ns) { received_ns_ = now_ns; }  // Bytes arrived.
  // Call every kLauncherTick. Time in which this process was stopped does not count as silence.
  void tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns_ > std::chrono::nanoseconds(4 * kLauncherTick).count())
      received_ns_ = std::min(received_ns_ + now_ns - ticked_ns_, now_ns);
    ticked_ns_ = now_ns;
  }
  std::int64_t last_received_ns() const { return received_ns_; }
  std::chrono::milliseconds lease() const { return lease_; }
  bool is_over(std::int64_t now_ns) const { return now_ns - received_ns_ > lease_ns(); }
  // True if half the lease has passed in silence, so that another link should be dialled while the
  // old one stays open. A new link has a quarter of the lease to bring an answer.
  bool needs_redial(std::int64_t now_ns, std::int64_t link_since_ns) const {
    return now_ns - received_ns_ > lease_ns() / 2 && now_ns - link_since_ns > lease_ns() / 4;
  }

 private:
  std::int64_t lease_ns() const { return std::chrono::nanoseconds(lease_).count(); }

  std::chrono::milliseconds lease_{0};
  std::int64_t received_ns_ = 0;
  std::int64_t ticked_ns_ = 0;
};

}  // namespace ivy
