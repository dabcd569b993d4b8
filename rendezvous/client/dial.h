// One connection to the store, made and greeted: a part of the client. Plain POSIX.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

using TimePoint = std::chrono::steady_clock::time_point;

// Whom to greet, and as whom.
struct DialTarget {
  std::string text;  // The address as it was given, for messages.
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::string purpose = "store";  // Or "leaf"; see proto/wire/handshake.h.
  std::uint64_t session = 0;      // A client's.
};

// "10.0.0.1:4123", "[fd00::1%eth0]:4123", "unix:/path": numeric, nothing is looked up.
Result<void> parse_address(const std::string& text, DialTarget& target);

// What ends a wait early: `descriptor` becomes readable when `cancelled` has been set. It may also
// become readable for other reasons; who sees that empties it, and goes on or, where `by_any` is
// set, ends the wait.
struct Interrupt {
  int descriptor = -1;
  const std::atomic<bool>* cancelled = nullptr;
  bool by_any = false;
};

// Waits until the descriptor (-1: none) is ready. What poll says of it; 0 at the deadline or when
// the wait was ended by any other reason; Cancelled.
Result<short> wait_ready(int descriptor, short events, TimePoint deadline, Interrupt interrupt);

struct Dialled {
  int descriptor = -1;  // Non-blocking; the caller closes it (proto/os/not_inherited.h).
  std::string epoch;
  WireDecoder decoder;  // With what came behind the welcome.
};

// Tries again, less and less often, until the deadline. Unavailable: nobody answered until then,
// with what was seen last; Unauthenticated, FailedPrecondition: somebody did, and repeating is of
// no use; AlreadyExists: the same, as the store lets nobody in any more; Cancelled.
Result<Dialled> dial_until(const DialTarget& target, TimePoint deadline, Interrupt interrupt);

}  // namespace ivy::store
