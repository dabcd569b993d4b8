// SPDX-License-Identifier: Apache-2.0
// Opens one connection to the store and performs the handshake. Part of the client. Plain POSIX.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

// The store's address, and the client's identity in the handshake.
struct DialTarget {
  std::string text;  // The address as the caller gave it, for messages.
  SocketAddress address;
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::uint64_t session = 0;
};

// Parses "10.0.0.1:4123", "[fd00::1%eth0]:4123" or "unix:/path". Addresses must be numeric; names
// are not resolved.
Result<void> parse_target(const std::string& text, DialTarget& target);

// Ends a wait early: `descriptor` becomes readable after `cancelled` was set. It may also become
// readable for other reasons; the waiter then drains it and continues or, if `by_any` is set, ends
// the wait.
struct Interrupt {
  int descriptor = -1;
  const std::atomic<bool>* cancelled = nullptr;
  bool by_any = false;
};

// Waits until the descriptor is ready; -1 waits only for the interrupt or the deadline. Returns
// poll()'s events, 0 at the deadline or if the interrupt ended the wait (`by_any`), or Cancelled.
Result<short> wait_ready(int descriptor, short events, std::uint64_t deadline_ns,
                         Interrupt interrupt);

struct Dialled {
  Descriptor socket;  // Non-blocking; closed in forked children.
  std::string epoch;
  WireDecoder decoder;  // Holds the bytes that arrived after the welcome.
};

// Dials repeatedly, at growing intervals, until the deadline. Fails with Unavailable if no store
// answered; the text has the last error. Fails with Unauthenticated, FailedPrecondition or
// AlreadyExists (the store takes no more clients) if a store rejected the client: dialling again
// would not help. Fails with Cancelled if it was interrupted.
Result<Dialled> dial_until(const DialTarget& target, std::uint64_t deadline_ns,
                           Interrupt interrupt);

}  // namespace ivy::store
