// SPDX-License-Identifier: Apache-2.0
#include "proto/os/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Returns true if the condition holds in time.
template <class Condition>
bool await(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(milliseconds(2));
  return condition();
}

TEST(HeartbeatTest, BeatsDuringAHangingLoopAndReportsItsAge) {
  std::atomic<int> beats{0};
  std::atomic<std::int64_t> silent{0};
  Heartbeat heartbeat(milliseconds(5), [&](nanoseconds loop_silent) {
    ++beats;
    silent = loop_silent.count();
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(beats, 0) << "it starts with the loop";
  heartbeat.turned();
  EXPECT_TRUE(await([&] { return nanoseconds(silent) > milliseconds(50); }));
  EXPECT_GE(beats, 2);
  EXPECT_TRUE(await([&] {
    heartbeat.turned();
    return nanoseconds(silent) < milliseconds(50);
  }));
}

TEST(HeartbeatTest, StopsImmediatelyWithItsOwner) {
  const auto begin = std::chrono::steady_clock::now();
  {
    Heartbeat heartbeat(std::chrono::hours(1), [](nanoseconds) {});
    heartbeat.turned();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace ivy
