// SPDX-License-Identifier: Apache-2.0
// Decides how long the workers of this host keep running without a sign of life from the launcher.
// See "Lease" in README.md here. Pure: the owner reports the link's state and the
// elapsed time. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/limits.h"

namespace ivy {

inline constexpr std::uint64_t kNanosPerMilli = 1'000'000;
inline constexpr std::uint64_t kNanosPerSecond = 1'000'000'000;

// The process at the far end of a link.
enum class LinkPeer {
  // The launcher itself holds the other end. End of file means that it has exited, so the workers
  // are stopped immediately, with the usual grace period.
  kLauncher,
  // A relay holds the other end. It closes half of the connection if the launcher closes its side,
  // and hangs up if it exits itself.
  kRelay,
};

// The side that closed a link.
enum class LinkLoss {
  kHalfClosed,  // The launcher closed the link cleanly: it exits, or redials immediately.
  kHungUp,      // The link itself broke: a new one may be established.
};

enum class LeaseState {
  kWaiting,  // No link has attached yet.
  kAttached,
  kPaused,  // Attached, and the launcher has announced that it is being suspended.
  kHalfClosed,
  kHungUp,
  kEnded,  // The launcher is considered dead. A new link restarts the lease.
};

struct LeaseLimits {
  std::uint64_t silence_ns = nanoseconds_of(kLeaseAttended);
  std::uint64_t half_closed_ns = nanoseconds_of(kHalfClosedLease);
  std::uint64_t absence_ns = nanoseconds_of(kAbsenceLease);
  // Limit of an announced pause on a link that may not notice the launcher's exit. A longer
  // lease raises the limit to its own length.
  std::uint64_t pause_ns = nanoseconds_of(kPauseLimit);
  // Limit of the time that one advance() counts. A supervisor that was stopped or starved for a
  // minute did not listen for that minute, so it must not conclude that the launcher was silent.
  std::uint64_t longest_step_ns = kNanosPerSecond / 2;
};

class Lease {
 public:
  explicit Lease(const LeaseLimits& limits) : limits_(limits) {}

  void set_silence(std::uint64_t silence_ns) { limits_.silence_ns = silence_ns; }
  // The job may outlive its launcher: after any kind of link loss the workers keep running for
  // silence_ns, and another launcher may attach.
  void set_outlives_launcher(bool outlives) { outlives_launcher_ = outlives; }
  void link_attached(LinkPeer peer);
  // Call when bytes from the attached launcher have arrived.
  void received();
  // The launcher announced that it will be silent. Ends with received(), or after pause_ns.
  void paused();
  void link_lost(LinkLoss loss);
  // Advances the clock. Call it at least twice per longest_step_ns.
  void advance(std::uint64_t elapsed_ns);

  LeaseState state() const { return state_; }
  // Returns true if the workers must be stopped, or, after they have exited, if no launcher will
  // fetch the report.
  bool ended() const { return state_ == LeaseState::kEnded; }
  // The reason for the end, for Report.reason; empty before the end.
  const std::string& reason() const { return reason_; }

 private:
  void enter(LeaseState state);
  void end(std::string reason);

  LeaseLimits limits_;
  bool outlives_launcher_ = false;
  LinkPeer peer_ = LinkPeer::kRelay;
  LeaseState state_ = LeaseState::kWaiting;
  std::uint64_t elapsed_ns_ = 0;  // Since the state was entered or data arrived.
  std::string reason_;
};

}  // namespace ivy
