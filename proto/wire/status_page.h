// The status page: one piece of shared memory per host and generation of a job, made by the
// supervisor and mapped by it and by all workers of the host that are attached to the control
// socket (control_wire.h). It says which ranks of the job have died, what ranks have reported, and
// what each local worker is doing; the latter can be read after the worker's death.
//
//   Header | deaths[world size] | reports[256] | host names[hosts] | slots[local size]
//
// Every part has one writer: header, deaths, reports and host names the supervisor, a slot its
// worker. Writers publish with release stores and change `news` last; readers load `news` with
// acquire and then look at what they have not seen. `news` is a futex word that the supervisor
// wakes (shared, not private) after each change. What another process writes is never trusted:
// every number read is checked against the layout.
//
// Little endian, fixed layout; a change of it changes kPageVersion.
// Pure but for the memory that it is given. Thread: any, within the rule of one writer.
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
inline constexpr std::uint32_t kReports = 256;       // The last ones; older ones are overwritten.
inline constexpr std::uint32_t kCommunicators = 64;  // Per worker at once; more are not shown.
inline constexpr std::uint32_t kFinished = 64;       // Flight record of one worker.
inline constexpr std::uint32_t kNobody = 0xffffffff;

// The state of a rank's process. kAlive also stands for one that has not attached yet.
enum class RankState : std::uint32_t {
  kAlive = 0,
  kLeft = 1,       // Finalized: the end of its process is no death.
  kExited = 2,     // `code`: exit code. Ending without a Leave is a death, also with 0.
  kSignalled = 3,  // `code` holds the signal's number.
  kDied = 4,       // Ended, but how is not known (it was no child of the supervisor).
  kHostLost = 5,   // Its host does not answer any more.
};

struct RankStatus {
  RankState state = RankState::kAlive;
  std::int32_t code = 0;
  std::int32_t pid = 0;  // On its host; 0: not known.
  std::uint32_t host = 0;
  bool out_of_memory = false;  // The kernel's OOM killer ended it.
  std::uint64_t when_ns = 0;   // This host's CLOCK_MONOTONIC when its supervisor learned of it.
  // How often the rank was started again alone. For communicators that were made with an earlier
  // process of it the rank is dead, however the present one does: `last_end` is then the state in
  // which the last one ended, and while the present one is alive `code` and `out_of_memory` tell
  // more about that.
  std::uint32_t rejoins = 0;
  RankState last_end = RankState::kAlive;
  bool operator==(const RankStatus&) const = default;
};

// An error that a rank of the job has reported, as every rank sees it.
struct PageReport {
  std::uint64_t number = 0;  // 1, 2, 3... within this page.
  std::uint8_t kind = 0;     // A value of control::ReportKind.
  std::uint32_t blamed = kNobody;
  std::uint32_t reporter = kNobody;
  std::uint64_t sequence = 0;  // The failed operation's number; 0: none.
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

// A value of whole words that one writer replaces while others read it: a sequence lock. Every word
// is atomic, so a reader detects a concurrent write, and there is no data race.
template <std::size_t kWords>
struct Cell {
  std::atomic<std::uint64_t> stamp;  // Odd while it is written; 0: never.
  std::atomic<std::uint64_t> words[kWords];

  // Writes two stamps and the words, without a read-modify-write and without a lock.
  void store(const std::array<std::uint64_t, kWords>& value) {
    // The stamp is odd already if a writer died in the middle.
    const std::uint64_t writing = stamp.load(std::memory_order_relaxed) | 1;
    stamp.store(writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < kWords; ++i) words[i].store(value[i], std::memory_order_relaxed);
    stamp.store(writing + 1, std::memory_order_release);
  }
  // The same where several threads may write: what comes while another one writes is dropped.
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
  // Returns nothing if the cell was never written, or if its writer died, was stopped in the
  // middle, or rewrites it continuously.
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
  std::uint64_t zero[7];
};

struct PageHeader {
  PageLayout layout;
  // Has a cache line of its own: every wait loop reads it, and it is seldom written.
  alignas(128) std::atomic<std::uint32_t> news;
  std::atomic<std::uint32_t> deaths;   // How many entries below are not kAlive and not kLeft.
  std::atomic<std::uint64_t> reports;  // The number of the newest report.
};

struct DeathEntry {
  std::atomic<std::uint32_t> state;  // Stored last, with release, so that the rest is there.
  std::atomic<std::int32_t> code;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> host;
  std::atomic<std::uint64_t> when_ns;
  // 1: out of memory. Bits 8 to 15: last_end. The upper half: rejoins.
  std::atomic<std::uint64_t> flags;
};

inline constexpr std::size_t kReportWords = 4 + (kNameBytes + kTextBytes) / 8;
inline constexpr std::size_t kRecordWords = sizeof(OperationRecord) / 8;

struct CommunicatorRow {
  Cell<kNameBytes / 8 - 1> name;     // At most 55 bytes and a zero; longer names are cut.
  Cell<kRecordWords> current;        // The newest operation, running or not.
  std::atomic<std::uint64_t> phase;  // The current operation's. Upper half: a message's tag plus 1.
};

struct Slot {
  std::atomic<std::uint32_t> rank;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> finished_count;
  std::atomic<std::uint64_t> zero[14];
  CommunicatorRow rows[kCommunicators];
  Cell<kRecordWords> finished[kFinished];
};

static_assert(sizeof(PageHeader) == 256 && sizeof(DeathEntry) == 32);
static_assert(sizeof(CommunicatorRow) == 128 && sizeof(Slot) % 64 == 0);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A worker's own slot. Every row is used by one thread at a time; finish() may be called by many.
class SlotView {
 public:
  explicit SlotView(Slot* slot) : slot_(slot) {}
  Slot* slot() const { return slot_; }

  // The worker itself writes, by these:
  void claim(std::uint32_t rank, std::int32_t pid);
  // `row` is less than kCommunicators.
  void name_communicator(std::uint32_t row, std::string_view name);
  // `record.communicator` is the row. Costs a few stores into two cache lines of this worker's own.
  void enter(const OperationRecord& record);
  // `tag_above`: of a message, its tag and 1; 0: any tag, or no message.
  void set_phase(std::uint32_t row, Phase phase, std::uint32_t tag_above = 0) {
    slot_->rows[row].phase.store(std::uint64_t{tag_above} << 32 | static_cast<std::uint64_t>(phase),
                                 std::memory_order_relaxed);
  }
  // Takes the same record with ended_ns and outcome set: removes it from the row's current and
  // appends it to the ring.
  void finish(const OperationRecord& record);

  // Any process reads, by these:
  std::uint32_t rank() const { return slot_->rank.load(std::memory_order_acquire); }
  std::int32_t pid() const { return slot_->pid.load(std::memory_order_relaxed); }
  std::string communicator_name(std::uint32_t row) const;
  std::optional<OperationRecord> current(std::uint32_t row) const;
  Phase phase(std::uint32_t row) const;
  std::uint32_t tag_above(std::uint32_t row) const;
  // The last `limit` finished operations, the newest first.
  std::vector<OperationRecord> finished(std::size_t limit) const;

 private:
  Slot* slot_;
};

class StatusPage {
 public:
  // Bytes of a page of this shape, whole pages of 4 KiB; InvalidArgument beyond the limits.
  static Result<std::size_t> bytes_of(const PageShape& shape);
  // Writes the header into zeroed memory of that size.
  static StatusPage format(void* memory, const PageShape& shape);
  // Checks what another process has formatted; nothing more of it is trusted. DataLoss, or
  // FailedPrecondition for another version.
  static Result<StatusPage> open(void* memory, std::size_t bytes);

  PageShape shape() const;
  // The futex word. Changes with every death and every report.
  std::atomic<std::uint32_t>& news() const { return header_->news; }
  // How many ranks are dead (neither alive nor left): a wait loop looks no further while it is 0.
  std::uint32_t deaths() const { return header_->deaths.load(std::memory_order_acquire); }

  // Written by the supervisor. set_rank and add_report do not change `news`; bump() does.
  void name_host(std::uint32_t host, std::string_view name);
  void set_rank(std::uint32_t rank, const RankStatus& status);
  // Gives the report the next number and returns it; longer texts are cut.
  std::uint64_t add_report(const PageReport& report);
  void bump() const { header_->news.fetch_add(1, std::memory_order_release); }

  // Read by any process. rank < world size, host < hosts, slot < local size.
  RankStatus rank(std::uint32_t rank) const;
  std::string host_name(std::uint32_t host) const;
  // Returns the reports after number `after`, oldest first; overwritten ones are missing.
  std::vector<PageReport> reports_after(std::uint64_t after) const;
  SlotView slot(std::uint32_t slot) const;

 private:
  StatusPage(PageHeader* header, const PageLayout& layout) : header_(header), layout_(layout) {}
  template <class T>
  T* at(std::uint64_t offset, std::size_t index) const;
  PageHeader* header_;
  PageLayout
      layout_;  // Our own copy: every process that maps the page may write over the header's.
};

}  // namespace ivy::comm_status
