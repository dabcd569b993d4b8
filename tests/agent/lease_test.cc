// SPDX-License-Identifier: Apache-2.0
// The lease, with a simulated clock.
#include "agent/node/workers/lease.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

constexpr std::uint64_t kTickNs = kNanosPerSecond / 4;

LeaseLimits ten_seconds() {
  LeaseLimits limits;
  limits.silence_ns = 10 * kNanosPerSecond;
  return limits;
}

class LeaseTest : public testing::Test {
 protected:
  void pass(double seconds) {
    const auto ticks = static_cast<int>(seconds * 4);
    for (int i = 0; i < ticks; ++i) lease_.advance(kTickNs);
  }
  Lease lease_{ten_seconds()};
};

TEST_F(LeaseTest, WaitsForTheFirstTransportWithoutEnd) {
  pass(600);
  EXPECT_FALSE(lease_.ended());
}

TEST_F(LeaseTest, EndsImmediatelyWithALocalLauncher) {
  lease_.link_attached(LinkPeer::kLauncher);
  lease_.link_lost(LinkLoss::kHalfClosed);
  EXPECT_TRUE(lease_.ended());
  EXPECT_EQ(lease_.reason(), "the launcher exited");
}

TEST_F(LeaseTest, IgnoresSilenceOfALocalLauncher) {
  lease_.link_attached(LinkPeer::kLauncher);
  pass(3600);
  EXPECT_FALSE(lease_.ended());
}

TEST_F(LeaseTest, EndsAfterTheSilenceOfARelaysLauncher) {
  lease_.link_attached(LinkPeer::kRelay);
  pass(9.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
  EXPECT_EQ(lease_.reason(), "lease: received nothing from the launcher for 10 s");
}

TEST_F(LeaseTest, RestartsWithEveryFrame) {
  lease_.link_attached(LinkPeer::kRelay);
  for (int i = 0; i < 10; ++i) {
    pass(9.75);
    lease_.received();
  }
  EXPECT_FALSE(lease_.ended());
}

TEST_F(LeaseTest, DoesNotRunDuringAPauseAndRunsAfterIt) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.paused();
  pass(3599);
  EXPECT_FALSE(lease_.ended());
  lease_.received();
  EXPECT_EQ(lease_.state(), LeaseState::kAttached);
  pass(10);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, EndsAPauseOfARelaysLauncherAfterAnHour) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.paused();
  pass(3599.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
  EXPECT_EQ(lease_.reason(), "lease: the launcher has been suspended for 3600 s");
}

TEST_F(LeaseTest, GivesAPauseAsLongAsALongLease) {
  lease_.set_silence(7200 * kNanosPerSecond);
  lease_.link_attached(LinkPeer::kRelay);
  lease_.paused();
  pass(7199.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, DoesNotEndAPauseOfALocalLauncher) {
  lease_.link_attached(LinkPeer::kLauncher);
  lease_.paused();
  pass(7200);
  EXPECT_FALSE(lease_.ended());
}

TEST_F(LeaseTest, CountsTheAbsenceOfALauncherWhoseTransportHungUpDuringAPause) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.paused();
  lease_.link_lost(LinkLoss::kHungUp);
  pass(59.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, WaitsForTheWholeLeaseIfTheJobOutlivesItsLauncher) {
  for (const LinkPeer kind : {LinkPeer::kLauncher, LinkPeer::kRelay})
    for (const LinkLoss loss : {LinkLoss::kHalfClosed, LinkLoss::kHungUp}) {
      lease_ = Lease{ten_seconds()};
      lease_.set_outlives_launcher(true);
      lease_.link_attached(kind);
      lease_.link_lost(loss);
      pass(9.75);
      EXPECT_FALSE(lease_.ended());
      pass(0.25);
      EXPECT_TRUE(lease_.ended());
      EXPECT_EQ(lease_.reason(), "lease: no connection from the launcher for 10 s");
    }
}

TEST_F(LeaseTest, RestartsTheLeaseWhenAnotherLauncherAttaches) {
  lease_.set_outlives_launcher(true);
  lease_.set_silence(3600 * kNanosPerSecond);
  lease_.link_attached(LinkPeer::kLauncher);
  lease_.link_lost(LinkLoss::kHungUp);
  pass(3599);
  lease_.link_attached(LinkPeer::kRelay);
  EXPECT_EQ(lease_.state(), LeaseState::kAttached);
  lease_.link_lost(LinkLoss::kHalfClosed);
  pass(3599);
  EXPECT_FALSE(lease_.ended());
  pass(1);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, GivesOneSecondAfterAHalfClose) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.link_lost(LinkLoss::kHalfClosed);
  pass(0.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, GivesSixtySecondsAfterAHangUp) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.link_lost(LinkLoss::kHungUp);
  pass(59.75);
  EXPECT_FALSE(lease_.ended());
  pass(0.25);
  EXPECT_TRUE(lease_.ended());
}

TEST_F(LeaseTest, ForgetsALossWhenANewTransportAttaches) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.link_lost(LinkLoss::kHalfClosed);
  pass(0.75);
  lease_.link_attached(LinkPeer::kRelay);
  pass(9.75);
  EXPECT_FALSE(lease_.ended());
}

TEST_F(LeaseTest, RestartsWhenALauncherReturnsAfterTheEnd) {
  lease_.link_attached(LinkPeer::kRelay);
  pass(10);
  ASSERT_TRUE(lease_.ended());
  lease_.link_attached(LinkPeer::kRelay);
  EXPECT_FALSE(lease_.ended());
  EXPECT_EQ(lease_.reason(), "");
}

TEST_F(LeaseTest, LimitsThePauseCountedWhileTheLoopWasBlocked) {
  lease_.link_attached(LinkPeer::kRelay);
  lease_.advance(3600 * kNanosPerSecond);
  EXPECT_FALSE(lease_.ended());
  pass(9.5);
  EXPECT_TRUE(lease_.ended());
}

}  // namespace
}  // namespace ivy
