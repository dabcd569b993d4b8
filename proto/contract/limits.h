// Every duration that two sides of a job share, in one table: if one side waits for something, the
// other must do it in less time. A timeout that only one side depends on stays beside its code.
// Thread: any; constants.
#pragma once

#include <chrono>
#include <cstdint>

namespace ivy {

// A launcher and a host's supervisor each send something at least this often. Both check the clock
// more often than that.
inline constexpr std::chrono::milliseconds kHeartbeat{1'000};
inline constexpr std::chrono::milliseconds kLauncherTick = kHeartbeat / 2;
inline constexpr std::chrono::milliseconds kSupervisorTick = kHeartbeat / 4;

// The lease: how long workers live without hearing from their launcher, and how long the launcher
// keeps a host that is silent. It is shorter where a user at a terminal sees the job; a carrier may
// have another one (launcher/options/carrier_kind.cc).
inline constexpr std::chrono::milliseconds kLeaseAttended{10'000};
inline constexpr std::chrono::milliseconds kLeaseUnattended{60'000};
inline constexpr std::chrono::milliseconds kShortestLease = 2 * kHeartbeat;
// The lease after the launcher has closed its connection in order: it is exiting, or redials at
// once.
inline constexpr std::chrono::milliseconds kHalfClosedLease{1'000};
// The lease after the connection broke: the launcher may redial.
inline constexpr std::chrono::milliseconds kAbsenceLease{60'000};
// How long a supervisor on another host keeps the workers of a suspended launcher (Ctrl-Z), if the
// job's lease is not longer.
inline constexpr std::chrono::minutes kPauseLimit{60};

// How long a supervisor waits for its launcher: for the first bytes of a connection, and for the
// job. The launcher has just started it, so the first connection may be slower than a later one.
inline constexpr std::chrono::milliseconds kFirstAttachTimeout{30'000};
inline constexpr std::chrono::milliseconds kAttachTimeout{5'000};
inline constexpr std::chrono::milliseconds kHelloTimeout{30'000};

// Stopping workers: TERM, then KILL after the grace, which is longer when the user or a scheduler
// asks for the end, and may be set with --shutdown-timeout. INT comes this long before TERM for
// Ctrl-C.
inline constexpr std::chrono::milliseconds kGraceAfterFailure{5'000};
inline constexpr std::chrono::milliseconds kGraceByRequest{30'000};
inline constexpr std::chrono::milliseconds kInterruptGrace{1'000};
// A supervisor names what it cannot end this long after KILL...
inline constexpr std::chrono::milliseconds kUnkillableAfter{30'000};
// ... and a supervisor that has not even done that after this time is stuck.
inline constexpr std::chrono::milliseconds kStopPatience = kUnkillableAfter * 3 / 2;

// How long a host waits before another attempt for the memory of its devices, which a driver may
// give back late; workers of other hosts wait for it in their framework's rendezvous.
inline constexpr std::chrono::milliseconds kDeviceMemoryWait{50'000};

constexpr std::uint64_t nanoseconds_of(std::chrono::nanoseconds duration) {
  return static_cast<std::uint64_t>(duration.count());
}

}  // namespace ivy
