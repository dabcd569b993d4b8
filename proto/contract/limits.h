// SPDX-License-Identifier: Apache-2.0
// Durations that two sides of a job share: if one side waits for an action, the other must perform
// it in less time. A timeout that only one side depends on is defined next to its code. Thread:
// any.
#pragma once

#include <chrono>
#include <cstdint>

namespace ivy {

// A launcher and a host's supervisor each send something at least this often, and check their
// clocks more often than that.
inline constexpr std::chrono::milliseconds kHeartbeat{1'000};
inline constexpr std::chrono::milliseconds kLauncherTick = kHeartbeat / 2;
inline constexpr std::chrono::milliseconds kSupervisorTick = kHeartbeat / 4;

// The lease: how long workers survive without contact to their launcher, and how long the launcher
// keeps a silent host. It is shorter if a user watches the job at a terminal. A transport may have
// its own (launcher/options/transport_kind.cc).
inline constexpr std::chrono::milliseconds kLeaseAttended{10'000};
inline constexpr std::chrono::milliseconds kLeaseUnattended{60'000};
inline constexpr std::chrono::milliseconds kShortestLease = 2 * kHeartbeat;
// The lease after the launcher has closed its connection cleanly: it is exiting, or redials
// immediately.
inline constexpr std::chrono::milliseconds kHalfClosedLease{1'000};
// The lease after the connection broke, during which the launcher may redial.
inline constexpr std::chrono::milliseconds kAbsenceLease{60'000};
// How long a supervisor on another host keeps the workers of a suspended launcher (Ctrl-Z), unless
// the job's lease is longer.
inline constexpr std::chrono::minutes kPauseLimit{60};

// How long a supervisor waits for the first bytes of a connection from its launcher, and then for
// the job. The first connection may be slower than later ones, because the launcher has only just
// started the supervisor.
inline constexpr std::chrono::milliseconds kFirstAttachTimeout{30'000};
inline constexpr std::chrono::milliseconds kAttachTimeout{5'000};
inline constexpr std::chrono::milliseconds kHelloTimeout{30'000};

// Time between TERM and KILL when workers are stopped. It is longer if the user or a scheduler
// stops the job, and can be set with --shutdown-timeout. After Ctrl-C, INT is sent kInterruptGrace
// before TERM.
inline constexpr std::chrono::milliseconds kGraceAfterFailure{5'000};
inline constexpr std::chrono::milliseconds kGraceByRequest{30'000};
inline constexpr std::chrono::milliseconds kInterruptGrace{1'000};
// A supervisor reports processes that survive KILL for this long.
inline constexpr std::chrono::milliseconds kUnkillableAfter{30'000};
// A supervisor that has reported nothing by this time after a stop is stuck.
inline constexpr std::chrono::milliseconds kStopTimeout = kUnkillableAfter * 3 / 2;

// How long a host delays the next attempt until the memory of its devices is free, which a driver
// may release late. Workers of other hosts wait for it in their framework's rendezvous.
inline constexpr std::chrono::milliseconds kDeviceMemoryWait{50'000};

constexpr std::uint64_t nanoseconds_of(std::chrono::nanoseconds duration) {
  return static_cast<std::uint64_t>(duration.count());
}

}  // namespace ivy
