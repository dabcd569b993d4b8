#include "launcher/job/host_clock.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(HostClockTest, TheSmallestDelayRelatesTheClocks) {
  HostClock clock;
  clock.heard(100, 5'100);
  clock.heard(200, 5'150);
  clock.heard(300, 5'900);
  clock.answered(40);
  EXPECT_EQ(clock.relate(1'000).at_ns, 5'950);
  EXPECT_EQ(clock.relate(1'000).error_ns, 40);
}

TEST(HostClockTest, ANegativeDifferenceOfTheClocksIsKept) {
  HostClock clock;
  clock.heard(9'000, 1'000);
  EXPECT_EQ(clock.relate(9'500).at_ns, 1'500);
}

TEST(HostSilenceTest, HalfTheLeaseAsksForAnotherWayAndTheWholeIsALoss) {
  HostSilence silence;
  silence.begin(std::chrono::seconds(20), 0);
  EXPECT_FALSE(silence.wants_another_way(9 * kSecond, 0));
  EXPECT_TRUE(silence.wants_another_way(11 * kSecond, 0));
  EXPECT_FALSE(silence.wants_another_way(11 * kSecond, 8 * kSecond)) << "a new way has its time";
  EXPECT_FALSE(silence.is_over(20 * kSecond));
  EXPECT_TRUE(silence.is_over(21 * kSecond));
  silence.heard(21 * kSecond);
  EXPECT_FALSE(silence.is_over(22 * kSecond));
}

TEST(HostSilenceTest, TimeInWhichThisProcessWasStoppedDoesNotCount) {
  HostSilence silence;
  silence.begin(std::chrono::seconds(10), 0);
  silence.tick(kSecond / 2);
  silence.tick(100 * kSecond);
  EXPECT_FALSE(silence.is_over(101 * kSecond));
  EXPECT_TRUE(silence.is_over(112 * kSecond));
}

}  // namespace
}  // namespace ivy
