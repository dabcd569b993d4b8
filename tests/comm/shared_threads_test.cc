// SPDX-License-Identifier: Apache-2.0
// Members of one shared memory group as threads of one process, in one mapping, so that
// ThreadSanitizer, which sees no other process or mapping, can check the data path.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/transports/shm/shared_segment.h"
#include "tests/support/eventually.h"

namespace ivy::comm {
namespace {

SharedGroupOptions options_of(std::uint32_t self, std::uint32_t members) {
  SharedGroupOptions options;
  options.communicator = "threads";
  options.host = "here";
  options.self = self;
  options.has_processor_each = false;
  for (std::uint32_t i = 0; i < members; ++i) {
    options.members.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i), 0});
  }
  options.selector = std::make_shared<const SharedSelector>(members);
  return options;
}

std::vector<std::unique_ptr<SharedGroup>> make_groups(std::uint32_t members,
                                                      bool is_overloaded = false) {
  std::vector<std::unique_ptr<SharedGroup>> groups;
  Result<std::unique_ptr<SharedSegment>> first = SharedSegment::create(members);
  EXPECT_TRUE(first.ok());
  const std::shared_ptr<SharedSegment> segment = std::move(first).value();
  for (std::uint32_t member = 0; member < members; ++member) {
    SharedGroupOptions options = options_of(member, members);
    options.is_overloaded = is_overloaded;
    groups.push_back(std::make_unique<SharedGroup>(segment, std::move(options), nullptr));
  }
  return groups;
}

// Runs every algorithm of one member, with varying data.
void work(SharedGroup& group) {
  std::uint64_t sequence = 0;
  for (int round = 0; round < 6; ++round) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{2000}, std::size_t{150'001}}) {
      OperationShape shape;
      shape.operation = Operation::kAllReduce;
      shape.count = count;
      Deadline deadline(ivy::test::scaled_time(std::chrono::seconds(60)));
      OperationCall call{shape, ++sequence, deadline};
      ReduceRule rule;
      rule.dtype = Dtype::kI32;
      std::vector<std::int32_t> values(count);
      const auto own = static_cast<std::int32_t>(group.self());
      std::iota(values.begin(), values.end(), own + round);
      ASSERT_TRUE(shared_all_reduce(&group, call, {rule, values.data(), values.data(), count}));
      const auto size = static_cast<std::int32_t>(group.size());
      const std::int32_t base = size * round + size * (size - 1) / 2;
      for (std::size_t i = 0; i < count; i += 61) {
        ASSERT_EQ(values[i], base + size * static_cast<std::int32_t>(i)) << i;
      }
      call.sequence = ++sequence;
      ASSERT_TRUE(shared_broadcast(&group, call, {values.data(), count * 4, {}}, 1));
      call.sequence = ++sequence;
      std::vector<std::int32_t> all(count * group.size());
      std::vector<Block> blocks;
      for (std::size_t m = 0; m < group.size(); ++m) blocks.push_back({m * count * 4, count * 4});
      ASSERT_TRUE(shared_all_gather(&group, call, values.data(), {all.data(), 0, blocks}));
      ASSERT_EQ(all.back(), values.back());
      call.sequence = ++sequence;
      ASSERT_TRUE(shared_barrier(&group, call));
    }
  }
}

void work_together(const std::vector<std::unique_ptr<SharedGroup>>& groups) {
  std::vector<std::thread> threads;
  for (const std::unique_ptr<SharedGroup>& group : groups) {
    threads.emplace_back([&group] { work(*group); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedThreadsTest, ReducesAmongMembers) {
  for (const std::uint32_t members : {2U, 3U}) work_together(make_groups(members));
}

TEST(SharedThreadsTest, ReducesAmongMoreMembersThanProcessors) {
  for (const std::uint32_t members : {3U, 9U}) work_together(make_groups(members, true));
}

// Sizes around one line, one batch of lines and the limit for lines; each area twice.
TEST(SharedThreadsTest, BroadcastsLineByLine) {
  const std::vector<std::unique_ptr<SharedGroup>> groups = make_groups(3);
  const auto play = [](SharedGroup& group) {
    std::uint64_t sequence = 0;
    for (const std::size_t bytes : {0, 40, 41, 55, 56, 57, 112, 895, 896, 897, 16383, 16384}) {
      for (std::size_t round = 0; round < 4; ++round) {
        OperationShape shape;
        shape.operation = Operation::kBroadcast;
        shape.count = bytes;
        Deadline deadline(ivy::test::scaled_time(std::chrono::seconds(60)));
        OperationCall call{shape, ++sequence, deadline};
        const auto root = static_cast<std::uint32_t>(round % group.size());
        const auto sent = [&](std::size_t i) { return static_cast<std::uint8_t>(i + sequence); };
        std::vector<std::uint8_t> data(bytes + 1, 0xee);
        for (std::size_t i = 0; i < bytes && group.self() == root; ++i) data[i] = sent(i);
        ASSERT_TRUE(shared_broadcast(&group, call, {data.data(), bytes, {}}, root));
        for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], sent(i)) << bytes << ": " << i;
        ASSERT_EQ(data[bytes], 0xee) << bytes;
      }
    }
  };
  std::vector<std::thread> threads;
  for (const auto& group : groups) threads.emplace_back([&] { play(*group); });
  for (std::thread& thread : threads) thread.join();
}

// A mismatch is reported even if a third member never arrives.
TEST(SharedThreadsTest, ReportsAMismatchBeforeAllMembersArrive) {
  std::vector<std::unique_ptr<SharedGroup>> groups = make_groups(3, true);
  const auto enter = [&](std::size_t member, Operation operation) {
    OperationShape shape;
    shape.operation = operation;
    Deadline deadline(ivy::test::scaled_time(std::chrono::seconds(60)));
    OperationCall call{shape, 1, deadline};
    std::int32_t value = 0;
    if (operation == Operation::kBarrier) return shared_barrier(groups[member].get(), call);
    return shared_all_reduce(groups[member].get(), call, {ReduceRule(), &value, &value, 1});
  };
  std::thread first([&] { EXPECT_FALSE(enter(0, Operation::kBarrier)); });
  EXPECT_FALSE(enter(1, Operation::kAllReduce));
  first.join();
  ASSERT_TRUE(groups[0]->failure());
  EXPECT_EQ(groups[0]->failure()->kind, FailureKind::kMismatch);
}

TEST(SharedThreadsTest, EveryMemberSeesAFailure) {
  std::vector<std::unique_ptr<SharedGroup>> groups = make_groups(2);
  std::thread waiting([&] {
    OperationShape shape;
    shape.operation = Operation::kBarrier;
    Deadline deadline(ivy::test::scaled_time(std::chrono::seconds(60)));
    EXPECT_FALSE(shared_barrier(groups[0].get(), OperationCall{shape, 1, deadline}));
  });
  groups[1]->break_with(make_failure(FailureKind::kAborted, "enough"));
  waiting.join();
  ASSERT_TRUE(groups[0]->failure());
  EXPECT_STREQ(groups[0]->failure()->text, "enough");
}

// Only one of the members that wait long in an operation queries the store, for all of them.
TEST(SharedThreadsTest, MembersTakeTurnsToCheck) {
  const auto groups = make_groups(3);
  const std::chrono::hours pause{1};
  std::atomic<int> asked{0};
  std::vector<std::thread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&] { asked += group->take_turn(5, pause) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(groups[0]->take_turn(5, pause));
  EXPECT_TRUE(groups[1]->take_turn(5, std::chrono::nanoseconds(0)));
  EXPECT_TRUE(groups[2]->take_turn(6, pause));
}

// A failure whose second half cannot be read, so that the process writing it dies halfway.
class HalfAFailure {
 public:
  HalfAFailure()
      : pages_(static_cast<char*>(
            mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        failure_(new (pages_ + kPage - sizeof(Failure) / 2) Failure) {
    *failure_ = make_failure(FailureKind::kAborted, "half");
    mprotect(pages_ + kPage, kPage, PROT_NONE);
  }
  ~HalfAFailure() { munmap(pages_, 2 * kPage); }
  HalfAFailure(const HalfAFailure&) = delete;
  HalfAFailure& operator=(const HalfAFailure&) = delete;

  const Failure& failure() const { return *failure_; }

 private:
  static constexpr std::size_t kPage = 64 * 1024;
  char* const pages_;
  Failure* const failure_;
};

TEST(SharedThreadsTest, BlocksNoMemberIfOneDiesWhileWritingAFailure) {
  const std::shared_ptr<SharedSegment> segment = SharedSegment::create(2).value();
  const HalfAFailure half;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    SharedGroup(segment, options_of(0, 2), nullptr).break_with(half.failure());
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  SharedGroup group(segment, options_of(1, 2), nullptr);
  group.break_with(make_failure(FailureKind::kRankDied, "the other one died"));
  ASSERT_TRUE(group.failure());
  EXPECT_STREQ(group.failure()->text, "the other one died");
}

// Reports that a rank on another host has died.
class DeathInOtherGroup final : public FailureDetector {
 public:
  const std::atomic<std::uint32_t>* wake_word() const override { return nullptr; }
  std::chrono::milliseconds poll_interval() const override { return std::chrono::milliseconds(2); }
  using FailureDetector::check;
  MaybeFailure check(std::int32_t /*waited_for*/) override {
    Failure death = make_failure(FailureKind::kRankDied, "rank 7 died");
    death.rank = 7;
    return death;
  }
  bool has_left(std::int32_t /*rank*/) override { return false; }
};

// Notes whether its futex word was read before the first check. An event between a check and a
// later reading would not end the sleep that follows.
class CheckedDetector final : public FailureDetector {
 public:
  const std::atomic<std::uint32_t>* wake_word() const override {
    if (!was_checked_) was_read_before_ = true;
    return &events_;
  }
  std::chrono::milliseconds poll_interval() const override { return std::chrono::milliseconds(2); }
  using FailureDetector::check;
  MaybeFailure check(std::int32_t /*waited_for*/) override {
    if (was_checked_) return make_failure(FailureKind::kRankDied, "rank 7 died");
    was_checked_ = true;
    return std::nullopt;
  }
  bool has_left(std::int32_t /*rank*/) override { return false; }
  bool was_read_before() const { return was_read_before_; }

 private:
  std::atomic<std::uint32_t> events_{0};
  bool was_checked_ = false;
  mutable bool was_read_before_ = false;
};

TEST(SharedThreadsTest, ReadsTheEventCountBeforeItChecksForFailures) {
  const std::shared_ptr<SharedSegment> segment = SharedSegment::create(2).value();
  CheckedDetector detector;
  SharedGroup waiting(segment, options_of(1, 2), &detector);
  Deadline deadline(std::chrono::seconds(60));
  EXPECT_FALSE(shared_barrier(&waiting, OperationCall{OperationShape(), 1, deadline}));
  EXPECT_TRUE(detector.was_read_before());
}

// Member 1 waits in the second step of a barrier. Member 0, which may have entered the operation,
// does its part after `pause`, or never. Returns the failure that member 1 gets, or an empty string
// if the barrier succeeds.
std::string reported_in_barrier(bool has_entered, std::optional<std::chrono::milliseconds> pause) {
  Result<std::unique_ptr<SharedSegment>> made = SharedSegment::create(2);
  EXPECT_TRUE(made.ok());
  const std::shared_ptr<SharedSegment> segment = std::move(made).value();
  DeathInOtherGroup detector;
  SharedGroup other(segment, options_of(0, 2), nullptr);
  SharedGroup waiting(segment, options_of(1, 2), &detector);
  OperationShape shape;
  shape.operation = Operation::kBarrier;
  if (has_entered) other.enter(shape, 1);
  std::thread thread([&] {
    if (!pause) return;
    std::this_thread::sleep_for(*pause);
    Deadline deadline(std::chrono::seconds(60));
    shared_barrier(&other, OperationCall{shape, 1, deadline});
  });
  waiting.enter(shape, 1);
  Deadline deadline(std::chrono::seconds(60));
  const bool is_done = shared_barrier(&waiting, OperationCall{shape, 1, deadline});
  thread.join();
  return is_done ? "" : waiting.failure()->text;
}

TEST(SharedThreadsTest, FinishesABarrierThatTheOtherMemberHasEnteredDespiteADeath) {
  EXPECT_EQ(reported_in_barrier(true, std::chrono::milliseconds(50)), "");
  EXPECT_NE(reported_in_barrier(true, std::nullopt).find("rank 7 died"), std::string::npos);
  EXPECT_NE(reported_in_barrier(false, std::nullopt).find("rank 7 died"), std::string::npos);
}

}  // namespace
}  // namespace ivy::comm
