// SPDX-License-Identifier: Apache-2.0
// A coroutine that an owner runs and stops: none of it runs after the owner was destroyed.
#include "launcher/streams/sequence.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <string>
#include <vector>

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Records how far its coroutine has run.
class Walker {
 public:
  Walker(boost::asio::io_context& loop, std::string& event_text)
      : sequence_(loop), story_(event_text) {}
  void start() { sequence_.start(walk()); }
  void stop() { sequence_.stop(); }
  void arrive(int value) { arrival_(value); }

 private:
  Awaitable<void> walk() {
    story_ += "a";
    co_await sequence_.turn();
    story_ += "b";
    co_await sequence_.sleep(milliseconds(1));
    story_ += "c";
    const int sum = co_await two_values();
    story_ += std::to_string(sum);
    stop();
    story_ += "d";
    co_await sequence_.checkpoint();
    story_ += "never";
  }
  Awaitable<int> two_values() {
    const auto keep = [this](const Arrival<int>& arrive) { arrival_ = arrive; };
    const int first = co_await sequence_.wait<int>(keep);
    const int second = co_await sequence_.wait<int>(keep);
    co_return first + second;
  }

  Sequence sequence_;
  std::string& story_;
  Arrival<int> arrival_;
};

void run_for(boost::asio::io_context& loop, milliseconds time) {
  loop.restart();
  loop.run_for(time);
}

TEST(Sequence, RunsStepByStepAndEndsWhereItIsStopped) {
  boost::asio::io_context loop;
  std::string event_text;
  Walker walker(loop, event_text);
  walker.start();
  EXPECT_EQ(event_text, "") << "it must not run inside start()";
  // A busy machine may take longer than the two waits do.
  for (int turn = 0; turn < 500 && event_text != "abc"; ++turn) run_for(loop, milliseconds(10));
  ASSERT_EQ(event_text, "abc");
  walker.arrive(3);
  walker.arrive(4);
  EXPECT_EQ(event_text, "abc7d");
  run_for(loop, milliseconds(5));
  EXPECT_EQ(event_text, "abc7d");
}

TEST(Sequence, AnOldArrivalDoesNotEndALaterWait) {
  boost::asio::io_context loop;
  Sequence sequence(loop);
  std::vector<Arrival<int>> arrivals;
  std::vector<int> seen;
  const auto steps = [&]() -> Awaitable<void> {
    const auto keep = [&](const Arrival<int>& arrive) { arrivals.push_back(arrive); };
    seen.push_back(co_await sequence.wait<int>(keep));
    seen.push_back(co_await sequence.wait<int>(keep));
  };
  sequence.start(steps());
  run_for(loop, milliseconds(5));
  arrivals.at(0)(1);
  arrivals.at(0)(2);
  EXPECT_EQ(seen, (std::vector<int>{1}));
  arrivals.at(1)(3);
  EXPECT_EQ(seen, (std::vector<int>{1, 3}));
}

TEST(Sequence, EndsAWaitAtItsLimit) {
  boost::asio::io_context loop;
  Sequence sequence(loop);
  std::optional<int> late = 1, in_time;
  const auto steps = [&]() -> Awaitable<void> {
    const auto never = [](const Arrival<int>&) {};
    late = co_await sequence.wait_at_most<int>(milliseconds(2), never);
    const auto soon = [&](const Arrival<int>& arrive) {
      boost::asio::post(loop, [arrive] { arrive(5); });
    };
    in_time = co_await sequence.wait_at_most<int>(std::chrono::hours(1), soon);
  };
  sequence.start(steps());
  run_for(loop, milliseconds(100));
  EXPECT_FALSE(late.has_value());
  EXPECT_EQ(in_time, 5);
}

TEST(Sequence, WaitsForANotificationOrTheDeadline) {
  boost::asio::io_context loop;
  Sequence sequence(loop);
  int count = 0, tests = 0;
  bool is_late = false;
  const auto steps = [&]() -> Awaitable<void> {
    const auto far = std::chrono::steady_clock::now() + std::chrono::hours(1);
    for (; count < 2; ++tests) co_await sequence.notified(far);
    co_await sequence.notified(std::chrono::steady_clock::now() + milliseconds(2));
    is_late = true;
  };
  sequence.notify();  // It has not started.
  sequence.start(steps());
  run_for(loop, milliseconds(5));
  for (count = 1; count <= 2; ++count) {
    EXPECT_EQ(tests, count - 1);
    sequence.notify();
    EXPECT_EQ(tests, count) << "it is resumed before notify() returns";
  }
  run_for(loop, milliseconds(100));
  EXPECT_TRUE(is_late);
  sequence.notify();  // It has ended.
}

TEST(Sequence, IsNotNotifiedAfterItsEnd) {
  boost::asio::io_context loop;
  Sequence sequence(loop);
  int resumed = 0;
  const auto steps = [&]() -> Awaitable<void> {
    co_await sequence.notified(std::chrono::steady_clock::now() + std::chrono::hours(1));
    ++resumed;
    sequence.stop();
    co_await sequence.notified(std::chrono::steady_clock::now() + std::chrono::hours(1));
    ++resumed;
  };
  sequence.start(steps());
  run_for(loop, milliseconds(5));
  sequence.notify();
  sequence.notify();
  run_for(loop, milliseconds(5));
  EXPECT_EQ(resumed, 1);
}

// Its destructor shows that a coroutine frame was destroyed.
struct Guest {
  explicit Guest(int& count) : present(count) { ++present; }
  ~Guest() { --present; }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  int& present;
};

TEST(Sequence, RunsNothingAfterItsEnd) {
  for (int turns = 0; turns < 8; ++turns) {
    boost::asio::io_context loop;
    std::string event_text;
    int guests = 0;
    auto sequence = std::make_unique<Sequence>(loop);
    Arrival<int> arrival;
    const auto steps = [&]() -> Awaitable<void> {
      const Guest guest(guests);
      event_text += "a";
      co_await sequence->turn();
      event_text += "b";
      const auto keep = [&](const Arrival<int>& arrive) { arrival = arrive; };
      co_await sequence->wait<int>(keep);
      event_text += "c";
    };
    sequence->start(steps());
    for (int i = 0; i < turns; ++i) loop.poll_one();
    const std::string before = event_text;
    sequence.reset();
    if (arrival) arrival(1);
    loop.restart();
    loop.poll();
    EXPECT_EQ(event_text, before) << turns;
    EXPECT_EQ(guests, 0) << "its frames still exist";
  }
}

TEST(Sequence, DestroysItsFramesWithTheLoop) {
  int guests = 0;
  {
    boost::asio::io_context loop;
    Sequence sequence(loop);
    const auto steps = [&]() -> Awaitable<void> {
      const Guest guest(guests);
      co_await sequence.sleep(std::chrono::hours(1));
    };
    sequence.start(steps());
    loop.poll();
    EXPECT_EQ(guests, 1);
  }
  EXPECT_EQ(guests, 0);
}

}  // namespace
}  // namespace ivy
