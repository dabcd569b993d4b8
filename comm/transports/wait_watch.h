// Whom waits tell that they last, and whom they ask for the one to blame when their time is over:
// for communicators of several hosts, where no rank sees all others. And whom operations tell that
// they begin.
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
  std::uint64_t sequence = 0;  // Of the communicator's operation.
  std::chrono::nanoseconds waited{0};
  std::int32_t waits_for = -1;  // Rank in the communicator.
  std::int32_t culprit = -1;    // A rank of this host that is seen not to do its part; -1: none.
  bool is_absent = false;       // It has not come; it may wait elsewhere for somebody.
  std::string because;          // What it does.
};

struct Suspicion {
  std::int32_t rank = -1;  // In the communicator.
  std::string because;
};

class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  // Cheap unless something is to be told. By waits that last, as often as they look around.
  virtual void waits(const LongWait& wait) = 0;
  // Takes some time. Nothing: the communicator is broken meanwhile, or nobody stands out.
  virtual std::optional<Suspicion> time_is_over(const LongWait& wait) = 0;
  virtual std::int32_t world_rank(std::int32_t rank) const = 0;
  // What that rank has entered, up to that operation at least; nothing: it does not say.
  virtual std::optional<EnteredOperations> ask_for(std::int32_t rank, std::uint64_t sequence) = 0;
};

// Whom an operation tells, once, that it has been entered: as soon as the others know, so that what
// is noted of it delays nobody, and before anything is waited for.
class EntryWatch {
 public:
  virtual ~EntryWatch() = default;
  virtual void entered() = 0;
};

}  // namespace ivy::comm
