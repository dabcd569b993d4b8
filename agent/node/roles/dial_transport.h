// SPDX-License-Identifier: Apache-2.0
// The transport of a host that srun has started: one connection from the host to its launcher. It
// runs in a process that the dialer (dial.h) forks and restarts. It connects, authenticates
// (proto/trust/psk_tls.h), sends the host's number (proto/wire/dial_wire.h), and then copies bytes
// between the launcher and the supervisor's command socket without interpreting them.
//
// The supervisor learns from its socket how the connection ended:
// - A half-close: the launcher, or its system, closed the connection (end or reset). The supervisor
//   may still send, until it has been silent for 5 s.
// - Both directions close: the launcher was silent or unreachable, or this process exited.
//
// Thread: the process's only thread. It ignores SIGPIPE and blocks all other signals.
#pragma once

#include <cstddef>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/dial_wire.h"

namespace ivy {

// The arguments of one transport.
struct DialAttempt {
  const DialOrder* order = nullptr;
  DialGreeting greeting;
  // A pipe to the dialer, to which the transport writes lines of DialEvent. Writing does not block;
  // lines that do not fit are dropped.
  int event_fd = -1;
};

// The first words of the lines by which the transport reports events to the dialer.
struct DialEvent {
  static constexpr char kUp[] = "up";  // The connection has reached the supervisor.
  static constexpr char kReceived[] =
      "heard";                               // Data has arrived; sent at most four times a second.
  static constexpr char kEnded[] = "ended";  // The launcher has closed its side, so dial again.
  // "signal NUMBER": this process has received the signal as well, so it was sent to all processes.
  static constexpr char kSignal[] = "signal";
  static constexpr char kWhy[] = "why";  // "why TEXT": the reason of a failure, for a message.
};

// Exit codes, in addition to kRelayNoSuchJob and kRelayFailed (relay.h).
inline constexpr int kDialOver = 0;        // The connection has served, or has reported a signal.
inline constexpr int kDialNotReached = 5;  // No usable connection to the launcher was made.

// Time limit of a connection to each address. Without it, a network that drops packets would delay
// the next address for minutes.
inline constexpr int kDialConnectTimeoutMs = 2'000;
// Time limit of the TLS handshake and the greeting.
inline constexpr int kDialHandshakeTimeoutMs = 5'000;

// Runs the transport; returns the process's exit code.
int run_dial_transport(const DialAttempt& attempt);

}  // namespace ivy
