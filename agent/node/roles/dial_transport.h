// SPDX-License-Identifier: Apache-2.0
// One connection from a host of a srun step to its launcher, in a separate process: connects,
// authenticates (proto/trust/psk_tls.h), identifies its host (proto/wire/dial_wire.h), and then
// copies bytes between the launcher and the job's command socket without interpreting them.
//
// The supervisor sees on its socket which end closed:
//   the launcher's side: announced, or by its system (end, reset)   half-close, held for 5 s
//   silence, no route, or the death of this process                 hang-up
// Thread: the process's only thread; SIGPIPE is ignored and all other signals are blocked.
#pragma once

#include <cstddef>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/dial_wire.h"

namespace ivy {

struct DialAttempt {
  const DialOrder* order = nullptr;
  DialGreeting greeting;
  // Receives the lines of DialNews. Writing does not block; lines that do not fit are dropped.
  int news_fd = -1;
};

// The events that the transport reports to the dialer, one per line.
struct DialNews {
  static constexpr char kUp[] = "up";        // The connection has reached the supervisor.
  static constexpr char kHeard[] = "heard";  // Data from the launcher; at most four times a second.
  static constexpr char kEnded[] = "ended";  // The launcher closed its side: dial again.
  static constexpr char kSignal[] = "signal";  // ... NUMBER: this process received the signal too.
  static constexpr char kWhy[] = "why";        // ... TEXT: the failure, for a message.
};

inline constexpr int kDialOver = 0;  // The connection was in use, or a signal was reported.
// In addition to kRelayNoSuchJob and kRelayFailed (relay.h):
inline constexpr int kDialNotReached = 5;

// Limit for each address in turn, since a network that drops unknown packets fails slowly.
inline constexpr int kDialConnectTimeoutMs = 2'000;
// Limit for the handshake and our greeting.
inline constexpr int kDialHandshakeTimeoutMs = 5'000;

// Runs the transport; returns the process's exit code.
int run_dial_transport(const DialAttempt& attempt);

}  // namespace ivy
