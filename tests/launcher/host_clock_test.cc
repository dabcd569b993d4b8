// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/host_clock.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ivy {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(HostClockTest, RelatesByTheSmallestDelayAndTheSmallestRoundTrip) {
  HostClock clock;
  clock.received(100, 5'100);
  clock.received(200, 5'150);
  clock.received(300, 5'900);
  clock.answered(70);
  clock.answered(40);
  clock.answered(90);
  const RelatedTime related = clock.relate(1'000, 6'000);
  EXPECT_EQ(related.at_ns, 5'950);
  EXPECT_EQ(related.error_ns, 40);
}

TEST(HostClockTest, KeepsANegativeDifferenceOfTheClocks) {
  HostClock clock;
  clock.received(9'000, 1'000);
  EXPECT_EQ(clock.relate(9'500, 1'600).at_ns, 1'500);
}

TEST(HostClockTest, HalvesTheErrorOnceTheHostReportsItsOwnDelay) {
  HostClock clock;
  clock.answered(500);              // Contains the start time of the supervisor.
  clock.received(1'000, 3'030);     // The host's clock is 2,000 behind; 30 on the way.
  clock.peer_delay(-1'990, 3'040);  // 10 on the way.
  const RelatedTime related = clock.relate(2'000, 3'100);
  EXPECT_EQ(related.at_ns, 4'010);  // Exactly: 4,000.
  EXPECT_EQ(related.error_ns, 20);
}

TEST(HostClockTest, FollowsAClockThatRunsSlower) {
  HostClock clock;
  clock.answered(200'000);
  // 20 parts per million for a day: 1.7 s in total.
  std::int64_t now = 0;
  for (; now < 24 * 3600 * kSecond; now += kSecond)
    clock.received(static_cast<std::uint64_t>(now - now / 50'000), now + 100'000);
  const RelatedTime related = clock.relate(static_cast<std::uint64_t>(now - now / 50'000), now);
  EXPECT_LE(std::abs(related.at_ns - now), related.error_ns);
  EXPECT_LT(related.error_ns, 10'000'000);
}

TEST(HostClockTest, AdmitsAnErrorAfterAPauseOfTheHostAndForgetsIt) {
  HostClock clock;
  clock.answered(200'000);
  std::int64_t now = 0;
  const auto listen_for = [&](int seconds, std::int64_t behind_ns) {
    for (int i = 0; i < seconds; ++i, now += kSecond)
      clock.received(static_cast<std::uint64_t>(now + 10 * kSecond - behind_ns), now + 100'000);
  };
  listen_for(100, 0);
  listen_for(40, 3 * kSecond);  // The host's clock stopped for three seconds.
  const RelatedTime soon =
      clock.relate(static_cast<std::uint64_t>(now + 10 * kSecond - 3 * kSecond), now);
  EXPECT_LE(std::abs(soon.at_ns - now), soon.error_ns);
  listen_for(70, 3 * kSecond);
  const RelatedTime later =
      clock.relate(static_cast<std::uint64_t>(now + 10 * kSecond - 3 * kSecond), now);
  EXPECT_LT(std::abs(later.at_ns - now), 10'000'000);
  EXPECT_LT(later.error_ns, 10'000'000);
}

TEST(HostClockTest, KeepsTheOrderOfOneHostsStamps) {
  HostClock clock;
  clock.answered(1'000);
  clock.received(1'000, 2'000);
  const std::int64_t first = clock.relate(1'500, 2'600).at_ns;
  clock.received(1'501, 2'002);  // A frame with a much shorter delay arrives in between.
  EXPECT_GT(clock.relate(1'502, 2'700).at_ns, first);
}

TEST(HostSilenceTest, RedialsAfterHalfTheLeaseAndGivesUpAfterAll) {
  HostSilence silence;
  silence.begin(std::chrono::seconds(20), 0);
  EXPECT_FALSE(silence.needs_redial(9 * kSecond, 0));
  EXPECT_TRUE(silence.needs_redial(11 * kSecond, 0));
  EXPECT_FALSE(silence.needs_redial(11 * kSecond, 8 * kSecond)) << "a new link has its time";
  EXPECT_FALSE(silence.is_over(20 * kSecond));
  EXPECT_TRUE(silence.is_over(21 * kSecond));
  silence.received(21 * kSecond);
  EXPECT_FALSE(silence.is_over(22 * kSecond));
}

TEST(HostSilenceTest, IgnoresTheTimeInWhichThisProcessWasStopped) {
  HostSilence silence;
  silence.begin(std::chrono::seconds(10), 0);
  silence.tick(kSecond / 2);
  silence.tick(100 * kSecond);
  EXPECT_FALSE(silence.is_over(101 * kSecond));
  EXPECT_TRUE(silence.is_over(112 * kSecond));
}

TEST(HostSilenceTest, DoesNotRecordAFutureTimeAfterAStop) {
  HostSilence silence;
  silence.begin(std::chrono::seconds(10), 0);
  silence.tick(kSecond);
  silence.received(3600 * kSecond);
  silence.tick(3600 * kSecond);
  EXPECT_EQ(silence.last_received_ns(), 3600 * kSecond);
  EXPECT_TRUE(silence.is_over(3611 * kSecond));
}

}  // namespace
}  // namespace ivy
