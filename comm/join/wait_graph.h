// SPDX-License-Identifier: Apache-2.0
// Determines the rank that a timeout blames if no rank sees all others. Ranks that wait long record
// in the job's store what they wait for, and a rank that times out follows this wait graph to its
// end.
//
// The wait records of one communicator, by rank, are the whole state. A rank writes its record
// kFirstReport after it began to wait in an operation, and again when it waits for another rank. As
// a heartbeat it also writes after each quarter of the time that it has waited, but at least once a
// second; after half a minute, after each thirtieth of that time, but at least every 10 s.
// Operations that proceed normally write nothing.
//
// find_suspect() is pure; WaitGraph is used by the operation's thread. Every query to the store has
// a limit, and a store that does not answer is not queried for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/contract/entered_operations.h"
#include "comm/transports/liveness/wait_watch.h"

namespace ivy::comm {

struct WaitRecord {
  EnteredOperations entered;
  std::uint32_t beat = 0;       // Increases with each write.
  std::uint32_t is_over = 0;    // 1 if it has also timed out.
  std::int32_t waits_for = -1;  // A rank in the communicator, or -1.
  // A rank of its host that caused the wait, as far as visible; -1 if none.
  std::int32_t culprit = -1;
  std::uint32_t is_absent = 0;     // 1 if the culprit has not entered the operation.
  std::uint32_t next_beat_ms = 0;  // It writes again within this time if it still waits.
  char because[192] = {};          // The culprit's activity; ends with NUL.
};
static_assert(std::is_trivially_copyable_v<WaitRecord>);

struct Suspect {
  std::int32_t rank = -1;
  std::string because;  // "rank 3 did not enter it; ..."
  bool is_certain = false;
};

// Returns the record of that rank, or nothing if it has written none.
using FindRecord = std::function<std::optional<WaitRecord>(std::int32_t rank)>;

// Follows the wait graph to its end, starting at `self`, whose record must be in `now`. `before`
// has the records of one heartbeat earlier: a rank whose record has not changed since is silent.
// Chains end after kChainMax ranks.
inline constexpr int kChainMax = 64;
Suspect find_suspect(std::int32_t self, std::uint64_t sequence, const FindRecord& before,
                     const FindRecord& now);

// The wait records of a communicator's ranks, in the job's store. Implemented by AcrossHosts
// (comm/group).
class WaitRecords {
 public:
  virtual ~WaitRecords() = default;
  // Returns false if the store did not answer within its limit.
  virtual bool write(std::int32_t rank, const WaitRecord& record) = 0;
  // Returns nothing if there is no such record, or if the store did not answer within its limit.
  virtual std::optional<WaitRecord> read(std::int32_t rank) = 0;
  // Returns whether the communicator is broken, so that no rank needs to wait for records any
  // longer.
  virtual bool is_broken() = 0;
};

class WaitGraph final : public WaitWatch {
 public:
  // `entered` and `records` must outlive it.
  WaitGraph(const EnteredOperations& entered, std::vector<std::int32_t> world_ranks,
            WaitRecords& records);

  void waits(const LongWait& wait) override;
  std::optional<Suspicion> timed_out(const LongWait& wait) override;
  std::int32_t world_rank(std::int32_t rank) const override {
    return world_ranks_[static_cast<std::size_t>(rank)];
  }
  std::optional<EnteredOperations> query_operations(std::int32_t rank,
                                                    std::uint64_t sequence) override;

 private:
  void write(const LongWait& wait, bool is_over);
  bool pause(std::chrono::nanoseconds time) const;

  const EnteredOperations& entered_;
  const std::vector<std::int32_t> world_ranks_;
  WaitRecords& records_;
  WaitRecord own_;
  std::uint64_t reported_sequence_ = 0;
  std::chrono::steady_clock::time_point reported_at_;
};

}  // namespace ivy::comm
