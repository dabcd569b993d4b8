// SPDX-License-Identifier: Apache-2.0
// One connection that a host of a srun step makes to its launcher, in a process of its own: dials,
// authenticates (proto/trust/psk_tls.h), identifies its host (proto/wire/dial_wire.h), and then
// copies bytes between the launcher and the job's command socket, none of which it interprets.
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
  // Written in lines: see DialNews. Does not block; lines that do not fit are lost.
  int news_fd = -1;
};

// The events that the transport reports to the dialer.
struct DialNews {
  static constexpr char kUp[] = "up";          // The connection has reached the supervisor.
  static constexpr char kHeard[] = "heard";    // The launcher lives; at most four times a second.
  static constexpr char kEnded[] = "ended";    // The launcher's side has ended: dial again.
  static constexpr char kSignal[] = "signal";  // ... NUMBER: this process got the signal too.
  static constexpr char kWhy[] = "why";        // ... TEXT: what failed, for the message.
};

inline constexpr int kDialOver = 0;  // It has carried, or a signal has been reported.
// Beside kRelayNoSuchJob and kRelayFailed (relay.h):
inline constexpr int kDialNotReached = 5;

// Time for each address in turn; a network that drops unknown packets is slow to fail.
inline constexpr int kDialConnectTimeoutMs = 2'000;
// Time for the handshake and our greeting.
inline constexpr int kDialHandshakeTimeoutMs = 5'000;

// Runs the transport; returns the process's exit code.
int run_dial_transport(const DialAttempt& attempt);

}  // namespace ivy
