// One connection that a host of a srun step makes to its launcher, in a process of its own: dials,
// proves itself (proto/trust/psk_tls.h), says who it is (proto/wire/dial_wire.h), and then copies
// bytes between the launcher and the job's command socket, of which it understands nothing.
//
// Which end went, as the supervisor sees it on its socket:
//   the launcher's side ended: it said so, or its system did (end, reset)   half-close, held 5 s
//   silence, no way, or this process dies                                   hang-up
// Thread: the process's only thread; SIGPIPE is ignored and every other signal blocked.
#pragma once

#include <cstddef>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/dial_wire.h"

namespace ivy {

struct DialAttempt {
  const DialOrder* order = nullptr;
  DialGreeting greeting;
  // One line each: see DialNews. Does not block; what does not fit is lost.
  int news_fd = -1;
};

// What it tells the dialer.
struct DialNews {
  static constexpr char kUp[] = "up";          // The supervisor is reached.
  static constexpr char kHeard[] = "heard";    // The launcher lives; at most four times a second.
  static constexpr char kEnded[] = "ended";    // The launcher's side has ended: dial again.
  static constexpr char kSignal[] = "signal";  // ... NUMBER: it reached this process as well.
  static constexpr char kWhy[] = "why";        // ... TEXT: what did not work.
};

inline constexpr int kDialOver = 0;  // It has carried, or a signal has been told.
// Beside kRelayNoSuchJob and kRelayFailed (relay.h):
inline constexpr int kDialNotReached = 5;

// One address after the other gets so long; a network that drops what it does not know is slow to
// say so.
inline constexpr int kDialConnectTimeoutMs = 2'000;
// The handshake, and our greeting.
inline constexpr int kDialHandshakeTimeoutMs = 5'000;

// The process's exit code.
int run_dial_carrier(const DialAttempt& attempt);

}  // namespace ivy
