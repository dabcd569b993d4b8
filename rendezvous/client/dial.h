// One connection to the store, made and greeted: a part of the client. Plain POSIX.
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

// The store to greet, and the client's own identity.
struct DialTarget {
  std::string text;  // The address as it was given, for messages.
  SocketAddress address;
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::uint64_t session = 0;
};

// "10.0.0.1:4123", "[fd00::1%eth0]:4123", "unix:/path": numeric, nothing is looked up.
Result<void> parse_target(const std::string& text, DialTarget& target);

// Ends a wait early: `descriptor` becomes readable when `cancelled` has been set. It may also
// become readable for other reasons; the waiter then empties it, and goes on or, if `by_any` is
// set, ends the wait.
struct Interrupt {
  int descriptor = -1;
  const std::atomic<bool>* cancelled = nullptr;
  bool by_any = false;
};

// Waits until the descriptor (-1: none) is ready. Returns poll()'s events; 0 at the deadline or
// when the interrupt ended the wait for another reason; or the error Cancelled.
Result<short> wait_ready(int descriptor, short events, std::uint64_t deadline_ns,
                         Interrupt interrupt);

struct Dialled {
  Descriptor socket;  // Non-blocking; no child of a fork keeps it.
  std::string epoch;
  WireDecoder decoder;  // Holds the bytes that came after the welcome.
};

// Dials again and again, at growing intervals, until the deadline. Unavailable: no store answered
// by then (with the last error); Unauthenticated, FailedPrecondition: a store refused, and dialling
// again would not help; AlreadyExists: the same, as the store takes no more clients; Cancelled.
Result<Dialled> dial_until(const DialTarget& target, std::uint64_t deadline_ns,
                           Interrupt interrupt);

}  // namespace ivy::store
