// SPDX-License-Identifier: Apache-2.0
// Two interfaces for waits. WaitWatch gets reports of long waits, and names the rank to blame when
// they time out. It is for communicators on several hosts, where no rank sees all others.
// EntryWatch is notified when an operation has been entered.
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
  std::int32_t waits_for = -1;  // A rank of the communicator, or -1.
  std::int32_t culprit = -1;    // A rank of this host that causes the wait, or -1 if unknown.
  // The culprit has not entered the operation; it may be waiting elsewhere.
  bool is_absent = false;
  std::string because;  // The culprit's activity, for the message.
};

struct Suspicion {
  std::int32_t rank = -1;  // The rank in the communicator.
  std::string because;
};

// Implemented by WaitGraph (comm/join).
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  // Called repeatedly by long waits. Cheap unless a record is due.
  virtual void waits(const LongWait& wait) = 0;
  // Called when a wait times out; takes some time. Returns nothing if the communicator broke in the
  // meantime, or if no rank stands out.
  virtual std::optional<Suspicion> timed_out(const LongWait& wait) = 0;
  virtual std::int32_t world_rank(std::int32_t rank) const = 0;
  // Returns that rank's operations, at least up to the given one, or nothing if it does not report
  // them.
  virtual std::optional<EnteredOperations> query_operations(std::int32_t rank,
                                                            std::uint64_t sequence) = 0;
};

// Called once per operation: after the entry is published, so that no other rank is delayed, and
// before the first wait. Implemented by OperationDisplay.
class EntryWatch {
 public:
  virtual ~EntryWatch() = default;
  virtual void entered() = 0;
};

}  // namespace ivy::comm
