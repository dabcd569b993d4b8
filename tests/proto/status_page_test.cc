// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/status_page.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

namespace ivy::comm_status {
namespace {

struct Memory {
  explicit Memory(const PageShape& shape)
      : bytes(*StatusPage::bytes_of(shape)), data(std::aligned_alloc(4096, bytes)) {
    std::memset(data, 0, bytes);
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::size_t bytes;
  void* data;
};

constexpr PageShape kShape{6, 2, 3, 4};

OperationRecord record(std::uint64_t sequence, std::uint16_t row = 0) {
  OperationRecord made;
  made.sequence = sequence;
  made.count = 1024;
  made.entered_ns = 1000 + sequence;
  made.communicator = row;
  made.operation = Operation::kAllReduce;
  made.dtype = Dtype::kF32;
  made.reduction = Reduction::kSum;
  return made;
}

// A worker that overwrites the header must not mislead the supervisor.
TEST(StatusPage, RejectsAnOverwrittenHeader) {
  Memory memory(kShape);
  StatusPage writer = StatusPage::format(memory.data, kShape);
  const Result<StatusPage> reader = StatusPage::open(memory.data, memory.bytes);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  for (const int garbage : {0x00, 0xff}) {
    std::memset(memory.data, garbage, sizeof(PageLayout));
    const RankStatus dead{RankState::kSignalled, 9, 4711, 2, true, 12345};
    writer.set_rank(5, dead);
    EXPECT_EQ(reader->rank(5), dead);
    writer.name_host(2, "node7");
    EXPECT_EQ(reader->host_name(2), "node7");
    writer.add_report({.communicator = "world", .text = "broken"});
    EXPECT_EQ(reader->reports_after(0).back().text, "broken");
    EXPECT_EQ(reader->shape(), kShape);
    EXPECT_EQ(reader->slot(1).rank(), kNoRank);
    EXPECT_FALSE(StatusPage::open(memory.data, memory.bytes).ok());
  }
}

TEST(StatusPage, ReadsBackWrittenValues) {
  Memory memory(kShape);
  StatusPage writer = StatusPage::format(memory.data, kShape);
  const Result<StatusPage> reader = StatusPage::open(memory.data, memory.bytes);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->shape(), kShape);
  EXPECT_EQ(reader->rank(5), RankStatus{});
  writer.name_host(2, "node7");
  const RankStatus dead{RankState::kSignalled, 9, 4711, 2, true, 12345};
  writer.set_rank(5, dead);
  EXPECT_EQ(reader->event_count().load(), 0u);
  writer.bump();
  EXPECT_EQ(reader->event_count().load(), 1u);
  EXPECT_EQ(reader->rank(5), dead);
  EXPECT_EQ(reader->rank(4).state, RankState::kAlive);
  EXPECT_EQ(reader->host_name(2), "node7");
  EXPECT_EQ(reader->host_name(1), "");
  EXPECT_EQ(reader->deaths(), 1u);
}

TEST(StatusPage, CountsADeathOnceAndLeavingNever) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  page.set_rank(1, {RankState::kLeft});
  EXPECT_EQ(page.deaths(), 0u);
  page.set_rank(2, {RankState::kDied});
  page.set_rank(2, {RankState::kExited, 3});
  EXPECT_EQ(page.deaths(), 1u);
  EXPECT_EQ(page.rank(2).code, 3);
}

TEST(StatusPage, ShowsTheLastExitOfARestartedRank) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  RankStatus again;
  again.pid = 77;
  again.code = 9;
  again.out_of_memory = true;
  again.rejoins = 3;
  again.last_end = RankState::kSignalled;
  page.set_rank(2, again);
  EXPECT_EQ(page.rank(2), again);
  EXPECT_EQ(page.deaths(), 0u);
}

TEST(StatusPage, ReturnsReportsInOrderAndDropsTheOldest) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  EXPECT_TRUE(page.reports_after(0).empty());
  const PageReport reported{0, 2, 3, 1, 812, "world", "rank 3 did not come"};
  EXPECT_EQ(page.add_report(reported), 1u);
  PageReport expected = reported;
  expected.number = 1;
  ASSERT_EQ(page.reports_after(0).size(), 1u);
  EXPECT_EQ(page.reports_after(0)[0], expected);
  EXPECT_TRUE(page.reports_after(1).empty());
  for (std::uint32_t i = 0; i < kReports + 30; ++i) page.add_report(reported);
  const auto kept = page.reports_after(10);
  ASSERT_EQ(kept.size(), kReports);
  EXPECT_EQ(kept.front().number, 32u);
  EXPECT_EQ(kept.back().number, kReports + 31u);
}

TEST(StatusPage, TruncatesTextsAtTheirLimits) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  page.add_report({0, 1, 0, 0, 0, std::string(999, 'c'), std::string(9999, 't')});
  EXPECT_EQ(page.reports_after(0)[0].communicator, std::string(kNameBytes, 'c'));
  EXPECT_EQ(page.reports_after(0)[0].text, std::string(kTextBytes, 't'));
  page.name_host(0, std::string(999, 'h'));
  EXPECT_EQ(page.host_name(0), std::string(kNameBytes, 'h'));
}

TEST(StatusPage, ASlotShowsCurrentAndFinishedOperations) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(1);
  EXPECT_EQ(slot.rank(), kNoRank);
  slot.claim(5, 4711);
  slot.name_communicator(3, "world");
  EXPECT_EQ(slot.rank(), 5u);
  EXPECT_EQ(slot.pid(), 4711);
  EXPECT_EQ(slot.communicator_name(3), "world");
  EXPECT_FALSE(slot.current(3));
  slot.enter(record(1, 3));
  slot.set_phase(3, Phase::kWaiting);
  EXPECT_EQ(slot.current(3), record(1, 3));
  EXPECT_EQ(slot.phase(3), Phase::kWaiting);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    OperationRecord done = record(i, 3);
    slot.enter(done);
    done.ended_ns = 5000 + i;
    done.outcome = Outcome::kDone;
    slot.finish(done);
  }
  EXPECT_EQ(slot.current(3)->outcome, Outcome::kDone);
  const auto finished = slot.finished(1000);
  ASSERT_EQ(finished.size(), kFinished);
  EXPECT_EQ(finished.front().sequence, 100u);
  EXPECT_EQ(finished.back().sequence, 100u - kFinished + 1);
  // The other slot belongs to another process.
  EXPECT_EQ(page.slot(0).finished(1).size(), 0u);
  // A later process starts without operations.
  slot.claim(5, 4712);
  EXPECT_FALSE(slot.current(3));
  EXPECT_TRUE(slot.finished(9).empty());
}

TEST(StatusPage, RejectsOtherLayoutsAndGarbage) {
  Memory memory(kShape);
  EXPECT_FALSE(StatusPage::open(memory.data, memory.bytes).ok()) << "zeros";
  StatusPage::format(memory.data, kShape);
  EXPECT_FALSE(StatusPage::open(memory.data, memory.bytes - 1).ok());
  EXPECT_FALSE(StatusPage::open(memory.data, 8).ok());
  auto* const bytes = static_cast<unsigned char*>(memory.data);
  bytes[8] ^= 0x40;
  const Result<StatusPage> other = StatusPage::open(memory.data, memory.bytes);
  EXPECT_EQ(other.error().code, Code::kFailedPrecondition);
  bytes[8] ^= 0x40;
  for (std::size_t i = 0; i < sizeof(PageLayout); ++i) {
    bytes[i] ^= 0x10;
    const Result<StatusPage> opened = StatusPage::open(memory.data, memory.bytes);
    // Any generation is valid. A changed size does not match the offsets.
    if (opened.ok()) {
      EXPECT_EQ(i / 4, 6u) << i;
    }
    bytes[i] ^= 0x10;
  }
  EXPECT_TRUE(StatusPage::open(memory.data, memory.bytes).ok());
}

TEST(StatusPage, RejectsShapesBeyondTheLimits) {
  EXPECT_TRUE(StatusPage::bytes_of({kMaxWorldSize, kMaxLocalSize, kMaxWorldSize, 0}).ok());
  EXPECT_FALSE(StatusPage::bytes_of({0, 0, 0, 0}).ok());
  EXPECT_FALSE(StatusPage::bytes_of({kMaxWorldSize + 1, 1, 1, 0}).ok());
  EXPECT_FALSE(StatusPage::bytes_of({kMaxWorldSize, kMaxLocalSize + 1, 1, 0}).ok());
  EXPECT_FALSE(StatusPage::bytes_of({4, 5, 1, 0}).ok());
  EXPECT_FALSE(StatusPage::bytes_of({4, 4, 5, 0}).ok());
}

TEST(StatusPage, NeverTrustsNumbersOfAWorker) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(0);
  OperationRecord wild = record(1, 0);
  wild.operation = static_cast<Operation>(250);
  wild.dtype = static_cast<Dtype>(250);
  slot.enter(wild);
  slot.set_phase(0, static_cast<Phase>(77));
  EXPECT_EQ(name_of(slot.current(0)->operation), "?");
  EXPECT_EQ(name_of(slot.current(0)->dtype), "?");
  EXPECT_EQ(name_of(slot.phase(0)), "?");
  EXPECT_EQ(slot.communicator_name(60'000), "");
  EXPECT_FALSE(slot.current(60'000));
}

// A reader sees only complete records, even while they are replaced continuously.
TEST(StatusPage, ReadersNeverSeeTornRecords) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(0);
  slot.claim(0, 1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
      OperationRecord next = record(i);
      next.count = i * 3;
      next.ended_ns = i * 7;
      slot.enter(next);
      slot.finish(next);
    }
  });
  std::uint64_t last = 0;
  int read = 0;
  while (read < 2'000 || last == 0) {
    for (const OperationRecord& seen : slot.finished(4)) {
      ASSERT_EQ(seen.count, seen.sequence * 3);
      ASSERT_EQ(seen.ended_ns, seen.sequence * 7);
    }
    const auto current = slot.current(0);
    ++read;
    if (!current) continue;
    ASSERT_EQ(current->count, current->sequence * 3);
    ASSERT_EQ(current->ended_ns, current->sequence * 7);
    ASSERT_GE(current->sequence, last);
    last = current->sequence;
  }
  stop = true;
  writer.join();
}

// Each thread has its own communicator and all share the ring. A thread that is interrupted while
// it writes may resume after the others have wrapped around.
TEST(StatusPage, KeepsRecordsOfConcurrentThreadsIntact) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(0);
  slot.claim(0, 1);
  const auto expect_whole = [&] {
    for (const OperationRecord& seen : slot.finished(kFinished)) {
      ASSERT_EQ(seen.count, seen.sequence * 3);
      ASSERT_EQ(seen.ended_ns, seen.sequence * 7);
    }
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (std::uint32_t row = 0; row < 6; ++row)
    writers.emplace_back([&, row] {
      for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
        OperationRecord next = record(std::uint64_t{row} << 32 | i, row);
        next.count = next.sequence * 3;
        next.ended_ns = next.sequence * 7;
        slot.finish(next);
      }
    });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < end && !HasFatalFailure()) expect_whole();
  stop = true;
  for (std::thread& writer : writers) writer.join();
  expect_whole();
}

// Builds that moment by hand: the first thread is in the middle of its record.
TEST(StatusPage, SkipsARowThatAnotherThreadWrites) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(0);
  slot.claim(0, 1);
  auto& place = slot.slot()->finished[0];
  place.stamp.store(1, std::memory_order_relaxed);
  slot.finish(record(5));
  EXPECT_EQ(place.stamp.load(std::memory_order_relaxed), 1u);
  EXPECT_TRUE(slot.finished(kFinished).empty());
  slot.finish(record(6));
  ASSERT_EQ(slot.finished(kFinished).size(), 1u);
  EXPECT_EQ(slot.finished(1)[0].sequence, 6u);
}

TEST(StatusPage, ReusesTheRowOfAProcessKilledWhileWriting) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  SlotView slot = page.slot(0);
  slot.claim(0, 1);
  slot.slot()->finished[0].stamp.store(7, std::memory_order_relaxed);
  slot.claim(0, 2);
  slot.finish(record(9, 0));
  ASSERT_EQ(slot.finished(1).size(), 1u);
  EXPECT_EQ(slot.finished(1)[0].sequence, 9u);
}

// A reader that sees the count also sees the event.
TEST(StatusPage, BumpsTheEventCountAfterTheDeath) {
  Memory memory(kShape);
  StatusPage page = StatusPage::format(memory.data, kShape);
  std::thread supervisor([&] {
    for (std::uint32_t rank = 0; rank < 6; ++rank) {
      page.set_rank(rank, {RankState::kSignalled, 9, 100 + static_cast<int>(rank), rank % 3});
      page.bump();
    }
  });
  std::uint32_t seen = 0;
  while (seen < 6) {
    seen = page.event_count().load(std::memory_order_acquire);
    for (std::uint32_t rank = 0; rank < seen; ++rank) {
      ASSERT_EQ(page.rank(rank).state, RankState::kSignalled);
      ASSERT_EQ(page.rank(rank).pid, 100 + static_cast<int>(rank));
    }
  }
  supervisor.join();
}

}  // namespace
}  // namespace ivy::comm_status
