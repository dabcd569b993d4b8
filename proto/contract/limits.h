// Every time that two sides of a job share, in one table: what one side waits for, the other must
// do in less. A patience that nobody else depends on stays beside the code that has it. Thread:
// any; constants.
#pragma once

#include <chrono>
#include <cstdint>

namespace ivy {

// Between a launcher and a host's supervisor: each says something at least this often. Both look at
// the clock more often than that.
inline constexpr std::chrono::milliseconds kHeartbeat{1'000};
inline constexpr std::chrono::milliseconds kLauncherTick = kHeartbeat / 2;
inline constexpr std::chrono::milliseconds kSupervisorTick = kHeartbeat / 4;

// The lease: how long workers live without hearing from their launcher, and how long the launcher
// believes in a host that is silent. Shorter where somebody sits at the terminal and sees it.
inline constexpr std::chrono::milliseconds kLeaseAttended{10'000};
inline constexpr std::chrono::milliseconds kLeaseUnattended{60'000};
inline constexpr std::chrono::milliseconds kShortestLease = 2 * kHeartbeat;
// The launcher's side has ended its connection in order: it is ending, or redials at once.
inline constexpr std::chrono::milliseconds kHalfClosedLease{1'000};
// The connection has died: a new one may come.
inline constexpr std::chrono::milliseconds kAbsenceLease{60'000};
// How long a supervisor on another host keeps the workers of a suspended launcher (Ctrl-Z), if the
// job's lease is not longer.
inline constexpr std::chrono::minutes kPauseLimit{60};

// A supervisor waits so long for its launcher: for the first words of a connection, and for
// the job.
// The launcher was there to start it, so its first connection may be slower than a later one.
inline constexpr std::chrono::milliseconds kFirstAttachTimeout{30'000};
inline constexpr std::chrono::milliseconds kAttachTimeout{5'000};
inline constexpr std::chrono::milliseconds kHelloTimeout{30'000};

// Stopping workers: TERM, then KILL after the grace. INT comes this long before TERM for Ctrl-C.
inline constexpr std::chrono::milliseconds kGraceAfterFailure{5'000};
inline constexpr std::chrono::milliseconds kInterruptGrace{1'000};
// A supervisor names what it cannot end this long after KILL...
inline constexpr std::chrono::milliseconds kUnkillableAfter{30'000};
// ... and one that has not even done that by now is stuck.
inline constexpr std::chrono::milliseconds kStopPatience = kUnkillableAfter * 3 / 2;

constexpr std::uint64_t nanoseconds_of(std::chrono::nanoseconds duration) {
  return static_cast<std::uint64_t>(duration.count());
}

}  // namespace ivy
