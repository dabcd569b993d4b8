// SPDX-License-Identifier: Apache-2.0
// The interface that long waits report to, and that names the rank to blame when they time out: for
// communicators of several hosts, where no rank sees all others. And the one that operations report
// their beginning to.
//
// Thread: the operation's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/contract/entered_operations.h"

namespace ivy::comm {

struct LongWait {
  std::uint64_t sequence = 0;  // Number of the communicator's operation.
  std::chrono::nanoseconds waited{0};
  std::int32_t waits_for = -1;  // A rank of the communicator; -1: none.
  std::int32_t culprit = -1;    // A rank of this host that is seen not to do its part; -1: none.
  bool is_absent = false;       // The culprit has not arrived; it may wait elsewhere.
  std::string because;          // The culprit's activity, for the message.
};

struct Suspicion {
  std::int32_t rank = -1;  // The rank in the communicator.
  std::string because;
};

class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  // Called by waits that last, again and again. Cheap unless something is to be told.
  virtual void waits(const LongWait& wait) = 0;
  // Called when a wait times out; takes some time. Nothing: the communicator broke in the meantime,
  // or no rank stands out.
  virtual std::optional<Suspicion> time_is_over(const LongWait& wait) = 0;
  virtual std::int32_t world_rank(std::int32_t rank) const = 0;
  // Returns that rank's operations, up to the given one at least; nothing if it does not report
  // them.
  virtual std::optional<EnteredOperations> ask_for(std::int32_t rank, std::uint64_t sequence) = 0;
};

// An operation tells it, once, that it has been entered: as soon as the others know, so that noting
// it delays no other rank, and before anything is waited for.
class EntryWatch {
 public:
  virtual ~EntryWatch() = default;
  virtual void entered() = 0;
};

}  // namespace ivy::comm
