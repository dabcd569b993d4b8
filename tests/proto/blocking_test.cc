// SPDX-License-Identifier: Apache-2.0
#include "proto/os/blocking.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kTimeout(60);  // Nothing here takes that long.

// The owner's loop: runs posted functions on the test's thread.
class Loop {
 public:
  void post(std::function<void()> function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(function));
    changed_.notify_all();
  }
  // Runs one posted function. Returns false if none arrives in time.
  bool run_one(std::chrono::nanoseconds timeout = kTimeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [this] { return !posted_.empty(); })) return false;
    const std::function<void()> function = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    function();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
};

// A call that returns only when the test allows it.
class Gate {
 public:
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool await(int waiting) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return waiting_ >= waiting; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int waiting_ = 0;
};

class BlockingPoolTest : public testing::Test {
 protected:
  // Threads may outlive a test's pool, so they own what they use.
  BlockingPool::Post post() {
    return [loop = loop_](std::function<void()> function) { loop->post(std::move(function)); };
  }
  std::function<Result<int>()> behind(const std::shared_ptr<Gate>& gate) {
    return [gate]() -> Result<int> {
      gate->wait();
      return 1;
    };
  }
  // Returns true if the pool reports an overdue task of this name in time.
  static bool reports(const BlockingPool& pool, const std::string& name) {
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    while (std::chrono::steady_clock::now() < end) {
      const auto overdue = pool.overdue();
      if (overdue && overdue->name == name) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  const std::shared_ptr<Loop> loop_ = std::make_shared<Loop>();
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  void TearDown() override { gate_->open(); }
};

TEST_F(BlockingPoolTest, RunsTheCallOnAThreadAndTheCallbackOnTheLoop) {
  BlockingPool pool(post());
  std::thread::id worker;
  std::optional<int> answer;
  pool.run(
      "a file", kTimeout,
      [&worker]() -> Result<int> {
        worker = std::this_thread::get_id();
        return 7;
      },
      [&answer](Result<int> result) { answer = result.value(); });
  EXPECT_FALSE(answer) << "the answer must not arrive inside run()";
  ASSERT_TRUE(loop_->run_one());
  EXPECT_EQ(answer, 7);
  EXPECT_NE(worker, std::this_thread::get_id());
  EXPECT_FALSE(pool.overdue());
}

TEST_F(BlockingPoolTest, PassesErrorsAndMoveOnlyValues) {
  BlockingPool pool(post());
  std::string text;
  pool.run(
      "a file", kTimeout,
      [owned = std::make_unique<int>(5)]() -> Result<std::unique_ptr<int>> {
        return std::make_unique<int>(*owned + 1);
      },
      [&text, mark = std::make_unique<char>('=')](Result<std::unique_ptr<int>> result) {
        text += *mark + std::to_string(**result);
      });
  ASSERT_TRUE(loop_->run_one());
  pool.run(
      "a file", kTimeout,
      []() -> Result<void> {
        return Error{Code::kNotFound, "open x"};
      },
      [&text](Result<void> result) { text += result.error().message; });
  ASSERT_TRUE(loop_->run_one());
  EXPECT_EQ(text, std::string(1, '=') + "6open x");
}

TEST_F(BlockingPoolTest, AnswersAHangingCallAtItsDeadline) {
  BlockingPool pool(post(), {.overdue = milliseconds(5)});
  std::vector<Error> errors;
  pool.run("the file system of /home", milliseconds(20), behind(gate_),
           [&errors](Result<int> result) { errors.push_back(result.error()); });
  ASSERT_TRUE(loop_->run_one());
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, Code::kDeadlineExceeded);
  EXPECT_EQ(errors[0].message, "the file system of /home did not answer for 20 ms");
  EXPECT_FALSE(pool.overdue()) << "no caller waits for it any longer";
  gate_->open();
  EXPECT_FALSE(loop_->run_one(milliseconds(50))) << "the late result must be dropped";
}

TEST_F(BlockingPoolTest, NamesTheOldestOverdueTaskAndItsAge) {
  BlockingPool pool(post(), {.overdue = milliseconds(5)});
  int answers = 0;
  const auto count = [&answers](Result<int>) { ++answers; };
  pool.run("the file system of /home", BlockingPool::kNoDeadline, behind(gate_), count);
  ASSERT_TRUE(gate_->await(1));
  pool.run("the ssh agent", BlockingPool::kNoDeadline, behind(gate_), count);
  ASSERT_TRUE(reports(pool, "the file system of /home"));
  EXPECT_GE(pool.overdue()->age, milliseconds(5));
  gate_->open();
  ASSERT_TRUE(loop_->run_one());
  ASSERT_TRUE(loop_->run_one());
  EXPECT_EQ(answers, 2);
  EXPECT_FALSE(pool.overdue());
}

// Returns the number of threads of this process. It may shrink while threads of earlier tests exit.
std::ptrdiff_t count_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST_F(BlockingPoolTest, StartsOneThreadForATaskWithoutDeadline) {
  const std::ptrdiff_t before = count_threads();
  BlockingPool pool(post(), {.threads = 1, .stuck_threads = 1, .overdue = milliseconds(5)});
  const auto ignore = [](Result<int>) {};
  pool.run("a file", BlockingPool::kNoDeadline, behind(gate_), ignore);
  ASSERT_TRUE(gate_->await(1));
  EXPECT_LE(count_threads(), before + 1);
  // The second task waits until the pool replaces the hanging thread.
  pool.run("another file", BlockingPool::kNoDeadline, behind(gate_), ignore);
  EXPECT_TRUE(gate_->await(2));
  gate_->open();
  ASSERT_TRUE(loop_->run_one());
  ASSERT_TRUE(loop_->run_one());
}

TEST_F(BlockingPoolTest, LetsATaskRenameItself) {
  BlockingPool pool(post(), {.overdue = milliseconds(5)});
  pool.run(
      "the start", kTimeout,
      [gate = gate_](const BlockingPool::Label& label) -> Result<int> {
        label.set("the file system of /data");
        gate->wait();
        return 3;
      },
      [](Result<int>) {});
  EXPECT_TRUE(reports(pool, "the file system of /data"));
  gate_->open();
  ASSERT_TRUE(loop_->run_one());
}

TEST_F(BlockingPoolTest, ReplacesStuckThreads) {
  BlockingPool pool(post(), {.threads = 1, .stuck_threads = 3, .overdue = milliseconds(5)});
  const auto ignore = [](Result<int>) {};
  for (int i = 0; i < 3; ++i)
    pool.run("a dead server", BlockingPool::kNoDeadline, behind(gate_), ignore);
  bool is_answered = false;
  pool.run(
      "a local file", kTimeout, []() -> Result<int> { return 2; },
      [&is_answered](Result<int> result) { is_answered = result.value() == 2; });
  ASSERT_TRUE(loop_->run_one());
  EXPECT_TRUE(is_answered);
  EXPECT_EQ(pool.stuck_threads(), 3);
}

TEST_F(BlockingPoolTest, NamesTheHangingCallIfNoThreadIsLeft) {
  BlockingPool pool(post(), {.threads = 1, .stuck_threads = 1, .overdue = milliseconds(5)});
  const auto ignore = [](Result<int>) {};
  const auto first = pool.run("a dead server", BlockingPool::kNoDeadline, behind(gate_), ignore);
  const auto second = pool.run("a dead server", BlockingPool::kNoDeadline, behind(gate_), ignore);
  ASSERT_TRUE(gate_->await(2));
  pool.forget(first);
  pool.forget(second);
  bool is_late = false;
  pool.run(
      "a local file", milliseconds(500), []() -> Result<int> { return 2; },
      [&is_late](Result<int> result) { is_late = result.error().code == Code::kDeadlineExceeded; });
  EXPECT_TRUE(reports(pool, "a dead server"));
  ASSERT_TRUE(loop_->run_one());
  EXPECT_TRUE(is_late);
}

TEST_F(BlockingPoolTest, RejectsTasksBeyondTheQueueBound) {
  BlockingPool pool(post(), {.threads = 1, .stuck_threads = 0, .queued = 1});
  pool.run("first", kTimeout, behind(gate_), [](Result<int>) {});
  ASSERT_TRUE(gate_->await(1));
  pool.run("second", kTimeout, behind(gate_), [](Result<int>) {});
  std::optional<Error> error;
  pool.run("third", kTimeout, behind(gate_),
           [&error](Result<int> result) { error = result.error(); });
  EXPECT_FALSE(error) << "the callback must not run inside run()";
  ASSERT_TRUE(loop_->run_one());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, Code::kResourceExhausted);
  EXPECT_EQ(error->message, "third: 1 other calls wait for an answer");
}

TEST_F(BlockingPoolTest, DoesNotAnswerForgottenTasks) {
  BlockingPool pool(post(), {.overdue = milliseconds(5)});
  const auto held = std::make_shared<int>(0);
  const BlockingPool::TaskId id =
      pool.run("a file", kTimeout, behind(gate_), [held](Result<int>) { ++*held; });
  ASSERT_TRUE(reports(pool, "a file"));
  pool.forget(id);
  EXPECT_EQ(held.use_count(), 1) << "`done` is destroyed by forget()";
  EXPECT_FALSE(pool.overdue());
  gate_->open();
  EXPECT_FALSE(loop_->run_one(milliseconds(50)));
  pool.forget(id);
}

TEST_F(BlockingPoolTest, DestructionDoesNotWaitForAHangingCall) {
  const auto held = std::make_shared<int>(0);
  {
    BlockingPool pool(post());
    pool.run("a dead server", BlockingPool::kNoDeadline, behind(gate_),
             [held](Result<int>) { ++*held; });
    pool.run(
        "a file", kTimeout, []() -> Result<int> { return 1; }, [held](Result<int>) { ++*held; });
    ASSERT_TRUE(gate_->await(1));
  }
  EXPECT_EQ(held.use_count(), 1);
  gate_->open();
  while (loop_->run_one(milliseconds(20))) {
  }
  EXPECT_EQ(*held, 0) << "an answer posted before destruction must be dropped";
}

TEST_F(BlockingPoolTest, AnswersEachOfManyTasksOnce) {
  BlockingPool pool(post(), {.threads = 3, .queued = 100'000});
  constexpr int kTasks = 2000;
  std::vector<int> answers(kTasks);
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  for (int i = 0; i < kTasks; ++i)
    pool.run(
        "task", kTimeout,
        [i, &at_once, &most]() -> Result<int> {
          const int now = ++at_once;
          int seen = most.load();
          while (now > seen && !most.compare_exchange_weak(seen, now)) {
          }
          --at_once;
          return i;
        },
        [&answers](Result<int> result) { ++answers[static_cast<std::size_t>(*result)]; });
  for (int i = 0; i < kTasks; ++i) ASSERT_TRUE(loop_->run_one());
  EXPECT_EQ(answers, std::vector<int>(kTasks, 1));
  EXPECT_LE(most, 3);
}

}  // namespace
}  // namespace ivy
