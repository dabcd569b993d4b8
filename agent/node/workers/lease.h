// SPDX-License-Identifier: Apache-2.0
// How long the workers of this host live without hearing from the launcher. See "Lease" in
// agent/node/README.md. Pure: the owner reports what the transport does and how much time has
// passed. Thread: any, one at a time.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/limits.h"

namespace ivy {

inline constexpr std::uint64_t kNanosPerMilli = 1'000'000;
inline constexpr std::uint64_t kNanosPerSecond = 1'000'000'000;

// The meaning of a transport's end.
enum class TransportEnd {
  kLocal,  // The launcher holds the other end: end of file means that it has exited. Stop now.
  kRelay,  // A relay holds it. Half-close: the launcher's side ended. Hang-up: the relay ended.
};

// The side that closed a transport.
enum class TransportLoss {
  kHalfClosed,  // The launcher closed the transport in order: it exits, or redials immediately.
  kHungUp,      // The transport itself broke: a new one may be established.
};

enum class LeaseState {
  kWaiting,  // No transport has attached yet.
  kAttached,
  kPaused,  // Attached, and the launcher has announced that it is being suspended.
  kHalfClosed,
  kHungUp,
  kEnded,  // The launcher is considered dead. A new transport restarts the lease.
};

struct LeaseLimits {
  std::uint64_t silence_ns = nanoseconds_of(kLeaseAttended);
  std::uint64_t half_closed_ns = nanoseconds_of(kHalfClosedLease);
  std::uint64_t absence_ns = nanoseconds_of(kAbsenceLease);
  // How long an announced pause may last where a transport may fail to say that the launcher is
  // gone; a longer lease extends it to its own length.
  std::uint64_t pause_ns = nanoseconds_of(kPauseLimit);
  // One advance() counts at most this much. A supervisor that was stopped or starved for a minute
  // has not listened for a minute, so it must not conclude that the launcher was silent.
  std::uint64_t longest_step_ns = kNanosPerSecond / 2;
};

class Lease {
 public:
  explicit Lease(const LeaseLimits& limits) : limits_(limits) {}

  void set_silence(std::uint64_t silence_ns) { limits_.silence_ns = silence_ns; }
  // The job may outlive its launcher: however a transport ends, workers live on as long as silence
  // may last, and another launcher may come.
  void set_outlives_launcher(bool outlives) { outlives_launcher_ = outlives; }
  void transport_attached(TransportEnd kind);
  // Call when bytes of the attached launcher have arrived.
  void heard();
  // The launcher announces that it will be silent; ends with heard(), or after pause_ns.
  void paused();
  void transport_lost(TransportLoss loss);
  // Advances the clock. Call it at least twice per longest_step_ns.
  void advance(std::uint64_t elapsed_ns);

  LeaseState state() const { return state_; }
  // True when the workers must be stopped, or, once they are gone, when no launcher will come for
  // the report.
  bool ended() const { return state_ == LeaseState::kEnded; }
  // Why it ended, for Report.reason; empty while it has not.
  const std::string& reason() const { return reason_; }

 private:
  void enter(LeaseState state);
  void end(std::string reason);

  LeaseLimits limits_;
  bool outlives_launcher_ = false;
  TransportEnd kind_ = TransportEnd::kRelay;
  LeaseState state_ = LeaseState::kWaiting;
  std::uint64_t elapsed_ns_ = 0;  // Since the state was entered or something was heard.
  std::string reason_;
};

}  // namespace ivy
