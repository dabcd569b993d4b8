// SPDX-License-Identifier: Apache-2.0
// The status page: shared memory, one per host and generation of a job, created by the supervisor
// and mapped by it and by all workers of the host that are attached to the control socket
// (control_wire.h). It records which ranks of the job have died, the errors that ranks have
// reported, and the current operations of each local worker, which can be read even after the
// worker's death.
//
//   Header | deaths[world size] | reports[256] | host names[hosts] | slots[local size]
//
// Every part has one writer: the supervisor writes header, deaths, reports and host names; each
// worker writes its slot. Writers publish with release stores and change `event_count` last;
// readers load `event_count` with acquire and then read the parts that are new to them.
// `event_count` is a futex word (shared, not private) that the supervisor wakes after each change.
// Data written by another process is never trusted: every number is checked against the layout.
//
// The layout is fixed and little endian; a change of it changes kPageVersion. Pure except for the
// memory that it is given. Thread: any, within the rule of one writer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/operation.h"

namespace ivy::comm_status {

inline constexpr std::uint64_t kPageMagic = 0x31305354'59564921;  // "!IVYTS01"
inline constexpr std::uint32_t kPageVersion = 2;
inline constexpr std::uint32_t kMaxWorldSize = 65'536;
inline constexpr std::uint32_t kMaxLocalSize = 4096;
inline constexpr std::size_t kNameBytes = 64;
inline constexpr std::size_t kTextBytes = 512;
inline constexpr std::uint32_t kReports = 256;  // The newest ones; older reports are overwritten.
inline constexpr std::uint32_t kCommunicators = 64;  // Per worker; more are not shown.
inline constexpr std::uint32_t kFinished = 64;       // Finished operations recorded per worker.
inline constexpr std::uint32_t kNoRank = 0xffffffff;

// The state of a rank's process. kAlive includes processes that have not attached yet.
enum class RankState : std::uint32_t {
  kAlive = 0,
  kLeft = 1,       // Finalized, so the exit of its process does not count as a death.
  kExited = 2,     // `code` is the exit code. An exit without Leave is a death, even with code 0.
  kSignalled = 3,  // `code` is the signal's number.
  kDied = 4,       // Exited, but its status is unknown (it was not a child of the supervisor).
  kHostLost = 5,   // Its host no longer responds.
};

struct RankStatus {
  RankState state = RankState::kAlive;
  std::int32_t code = 0;
  std::int32_t pid = 0;  // On its host; 0 if unknown.
  std::uint32_t host = 0;
  bool out_of_memory = false;  // Killed by the kernel's OOM killer.
  std::uint64_t when_ns = 0;   // This host's CLOCK_MONOTONIC when its supervisor learned of it.
  // A rank that was restarted alone, after a kill by SIGKILL, has state kAlive, rejoins 1, last_end
  // kSignalled and code 9:
  // - rejoins counts its restarts. Communicators made with an earlier process treat it as dead.
  // - last_end is the final state of the previous process.
  // - code and out_of_memory describe that end while the current process is alive.
  std::uint32_t rejoins = 0;
  RankState last_end = RankState::kAlive;
  bool operator==(const RankStatus&) const = default;
};

// An error reported by a rank of the job, as seen by every rank.
struct PageReport {
  std::uint64_t number = 0;  // 1, 2, 3... within this page.
  std::uint8_t kind = 0;     // A value of control::ReportKind.
  std::uint32_t blamed = kNoRank;
  std::uint32_t reporter = kNoRank;
  std::uint64_t sequence = 0;  // The failed operation's number, or 0.
  std::string communicator;
  std::string text;
  bool operator==(const PageReport&) const = default;
};

struct PageShape {
  std::uint32_t world_size = 0;
  std::uint32_t local_size = 0;
  std::uint32_t hosts = 0;
  std::uint32_t generation = 0;
  bool operator==(const PageShape&) const = default;
};

// A sequence lock: a value of whole words that one writer replaces while others read it. Every word
// is atomic, so a reader detects a concurrent write, and there is no data race.
template <std::size_t kWords>
struct Cell {
  std::atomic<std::uint64_t> stamp;  // Odd during a write; 0 if never written.
  std::atomic<std::uint64_t> words[kWords];

  // Writes two stamps and the words, without a read-modify-write and without a lock.
  void store(const std::array<std::uint64_t, kWords>& value) {
    // The stamp is already odd if a writer died during a write.
    const std::uint64_t writing = stamp.load(std::memory_order_relaxed) | 1;
    stamp.store(writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < kWords; ++i) words[i].store(value[i], std::memory_order_relaxed);
    stamp.store(writing + 1, std::memory_order_release);
  }
  // store() for several concurrent writers: drops the value if another thread is writing.
  void store_among_many(const std::array<std::uint64_t, kWords>& value) {
    std::uint64_t before = stamp.load(std::memory_order_relaxed);
    if (before % 2 != 0 ||
        !stamp.compare_exchange_strong(before, before + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed))
      return;
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < kWords; ++i) words[i].store(value[i], std::memory_order_relaxed);
    stamp.store(before + 2, std::memory_order_release);
  }
  // Returns nothing if the cell was never written, or if its writer died or was stopped during a
  // write, or rewrites it continuously.
  std::optional<std::array<std::uint64_t, kWords>> load() const {
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries; ++i) {
      const std::uint64_t before = stamp.load(std::memory_order_acquire);
      if (before == 0) return std::nullopt;
      std::array<std::uint64_t, kWords> value;
      for (std::size_t w = 0; w < kWords; ++w) value[w] = words[w].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (before % 2 == 0 && stamp.load(std::memory_order_relaxed) == before) return value;
    }
    return std::nullopt;
  }
};

struct PageLayout {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t world_size;
  std::uint32_t local_size;
  std::uint32_t hosts;
  std::uint32_t generation;
  std::uint32_t slot_bytes;
  std::uint64_t deaths_offset;
  std::uint64_t reports_offset;
  std::uint64_t hosts_offset;
  std::uint64_t slots_offset;
  std::uint64_t total_bytes;
  std::uint64_t reserved[7];  // Always 0.
};

struct PageHeader {
  PageLayout layout;
  // On a separate cache line, because every wait loop reads it, and it is seldom written.
  alignas(128) std::atomic<std::uint32_t> event_count;
  std::atomic<std::uint32_t> deaths;   // Deaths so far, including those of ranks since restarted.
  std::atomic<std::uint64_t> reports;  // The number of the newest report.
};

struct DeathEntry {
  std::atomic<std::uint32_t> state;  // Stored last, with release.
  std::atomic<std::int32_t> code;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> host;
  std::atomic<std::uint64_t> when_ns;
  // Bit 0 is set if out of memory. Bits 8 to 15 hold last_end, the upper half rejoins.
  std::atomic<std::uint64_t> flags;
};

// A report: its number, its ranks, its sequence and its kind, one word each; then its two texts.
inline constexpr std::size_t kReportWords = 4 + (kNameBytes + kTextBytes) / 8;
inline constexpr std::size_t kRecordWords = sizeof(OperationRecord) / 8;

struct CommunicatorRow {
  Cell<kNameBytes / 8 - 1> name;     // At most 55 bytes and a zero; longer names are cut.
  Cell<kRecordWords> current;        // The newest operation, running or not.
  std::atomic<std::uint64_t> phase;  // Current phase. Upper half: a message's tag + 1.
};

struct Slot {
  std::atomic<std::uint32_t> rank;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> finished_count;
  std::atomic<std::uint64_t> reserved[14];  // Always 0.
  CommunicatorRow rows[kCommunicators];
  Cell<kRecordWords> finished[kFinished];
};

static_assert(sizeof(PageHeader) == 256 && sizeof(DeathEntry) == 32);
static_assert(sizeof(CommunicatorRow) == 128 && sizeof(Slot) % 64 == 0);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// One worker's slot. Only one thread at a time may write a row; threads that use different rows may
// call finish() concurrently.
class SlotView {
 public:
  explicit SlotView(Slot* slot) : slot_(slot) {}
  Slot* slot() const { return slot_; }

  // Called by the worker itself:
  void claim(std::uint32_t rank, std::int32_t pid);
  // `row` must be less than kCommunicators.
  void name_communicator(std::uint32_t row, std::string_view name);
  // `record.communicator` is the row. Costs a few stores into two cache lines of this worker.
  void enter(const OperationRecord& record);
  // `tag_above` is a message's tag plus 1, or 0 for any tag or without a message.
  void set_phase(std::uint32_t row, Phase phase, std::uint32_t tag_above = 0) {
    slot_->rows[row].phase.store(std::uint64_t{tag_above} << 32 | static_cast<std::uint64_t>(phase),
                                 std::memory_order_relaxed);
  }
  // Takes the same record with ended_ns and outcome set: replaces the row's current operation with
  // it and appends it to the ring of finished operations.
  void finish(const OperationRecord& record);

  // Called by any process:
  std::uint32_t rank() const { return slot_->rank.load(std::memory_order_acquire); }
  std::int32_t pid() const { return slot_->pid.load(std::memory_order_relaxed); }
  // Returns an empty text if the row has no name or is being written.
  std::string communicator_name(std::uint32_t row) const;
  // Returns nothing if there is no operation, or if the record is being written.
  std::optional<OperationRecord> current(std::uint32_t row) const;
  Phase phase(std::uint32_t row) const;
  std::uint32_t tag_above(std::uint32_t row) const;
  // Returns the last `limit` finished operations, the newest first.
  std::vector<OperationRecord> finished(std::size_t limit) const;

 private:
  Slot* slot_;
};

class StatusPage {
 public:
  // Returns the size in bytes of a page of this shape, a multiple of 4 KiB. Fails with
  // InvalidArgument beyond the limits.
  static Result<std::size_t> bytes_of(const PageShape& shape);
  // Writes the header into zeroed memory of that size.
  static StatusPage format(void* memory, const PageShape& shape);
  // Checks the header, which another process has written; no other field is trusted. Fails with
  // DataLoss, or with FailedPrecondition for another version.
  static Result<StatusPage> open(void* memory, std::size_t bytes);

  PageShape shape() const;
  // The futex word, which changes with every death and every report.
  std::atomic<std::uint32_t>& event_count() const { return header_->event_count; }
  // Returns the number of deaths so far; ranks that were restarted since are included. A wait loop
  // checks no further while it is 0.
  std::uint32_t deaths() const { return header_->deaths.load(std::memory_order_acquire); }

  // Called by the supervisor. set_rank and add_report do not change `event_count`; bump() does.
  void name_host(std::uint32_t host, std::string_view name);
  void set_rank(std::uint32_t rank, const RankStatus& status);
  // Returns the report's number, which this call assigns. Longer texts are cut.
  std::uint64_t add_report(const PageReport& report);
  void bump() const { header_->event_count.fetch_add(1, std::memory_order_release); }

  // Called by any process. Requires that `rank`, `host` and `slot` are within the page's shape.
  RankStatus rank(std::uint32_t rank) const;
  // Returns an empty text if the host has no name yet.
  std::string host_name(std::uint32_t host) const;
  // Returns the reports after number `after`, oldest first; overwritten ones are missing.
  std::vector<PageReport> reports_after(std::uint64_t after) const;
  SlotView slot(std::uint32_t slot) const;

 private:
  StatusPage(PageHeader* header, const PageLayout& layout) : header_(header), layout_(layout) {}
  template <class T>
  T* at(std::uint64_t offset, std::size_t index) const;
  PageHeader* header_;
  PageLayout layout_;  // A copy, because other processes may overwrite the header's.
};

}  // namespace ivy::comm_status
