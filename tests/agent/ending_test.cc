// SPDX-License-Identifier: Apache-2.0
// The steps of an ending, with a simulated clock.
#include "agent/node/workers/ending.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using enum EndingAction;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kBegin = 100 * kSecond;
constexpr EndingFacts kWorking{};
constexpr EndingFacts kLeftovers{.workers_ended = true};
constexpr EndingFacts kGone{.workers_ended = true, .empty = true, .has_all_output = true};
constexpr EndingFacts kExitedButPrinting{.workers_ended = true, .empty = true};

class EndingTest : public testing::Test {
 protected:
  EndingAction step(const EndingFacts& facts, std::uint64_t now) {
    last_ = ending_.advance(facts, now);
    return last_.action;
  }
  Ending ending_;
  EndingStep last_;
};

TEST_F(EndingTest, DoesNothingBeforeAStart) { EXPECT_EQ(step(kGone, kBegin), kNothing); }

TEST_F(EndingTest, ReportsOnceWhenAllHaveEndedByThemselves) {
  ending_.workers_started();
  EXPECT_EQ(step(kWorking, kBegin), kNothing);
  EXPECT_FALSE(last_.again_ns.has_value());
  EXPECT_EQ(step(kExitedButPrinting, kBegin), kNothing);
  EXPECT_EQ(step(kGone, kBegin), kReportClean);
  EXPECT_EQ(step(kGone, kBegin), kNothing);
  EXPECT_TRUE(ending_.reported());
}

TEST_F(EndingTest, ResetsItsState) {
  ending_.workers_started();
  ending_.order_stop(0, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kKill);
  EXPECT_EQ(step(kGone, kBegin), kReportClean);
  ending_.begin_again();
  EXPECT_FALSE(ending_.stopping());
  EXPECT_FALSE(ending_.has_killed());
  EXPECT_EQ(step(kGone, kBegin), kNothing);
  ending_.workers_started();
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kNothing);
  ending_.order_stop(5 * kSecond, kBegin + kSecond);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kTerminate);
}

TEST_F(EndingTest, TerminatesNotifiedWorkersASecondLaterWithTheFullGrace) {
  ending_.workers_started();
  ending_.order_stop(5 * kSecond, kBegin, kSecond);
  EXPECT_EQ(step(kWorking, kBegin), kTerminateUninformed);
  EXPECT_TRUE(ending_.stopping());
  EXPECT_EQ(step(kWorking, kBegin), kNothing);
  EXPECT_EQ(last_.again_ns, kSecond);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kTerminate);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kNothing);
  EXPECT_EQ(last_.again_ns, 5 * kSecond);
  EXPECT_EQ(step(kWorking, kBegin + 6 * kSecond), kKill);
}

TEST_F(EndingTest, DoesNotWaitIfTheWorkersHaveExitedOrAKillWasOrdered) {
  ending_.workers_started();
  ending_.order_stop(5 * kSecond, kBegin, kSecond);
  EXPECT_EQ(step(kWorking, kBegin), kTerminateUninformed);
  EXPECT_EQ(step(kLeftovers, kBegin + 1), kTerminate);
  Ending other;
  other.workers_started();
  other.order_stop(0, kBegin, kSecond);
  EXPECT_EQ(other.advance(kWorking, kBegin).action, kKill);
  Ending third;
  third.workers_started();
  third.order_stop(5 * kSecond, kBegin, kSecond);
  EXPECT_EQ(third.advance(kWorking, kBegin).action, kTerminateUninformed);
  // A second Ctrl-C: neither a notice nor a grace.
  third.order_stop(0, kBegin + 1);
  EXPECT_EQ(third.advance(kWorking, kBegin + 1).action, kKill);
}

TEST_F(EndingTest, CtrlCInterruptsTerminatesASecondLaterAndKillsWithinTheGrace) {
  ending_.workers_started();
  ending_.order_interrupt(30 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kInterrupt);
  EXPECT_TRUE(ending_.stopping());
  EXPECT_EQ(step(kWorking, kBegin), kNothing);
  EXPECT_EQ(last_.again_ns, Ending::kInterruptNs);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kTerminate);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kNothing);
  EXPECT_EQ(last_.again_ns, 29 * kSecond);
  EXPECT_EQ(step(kWorking, kBegin + 30 * kSecond), kKill);
}

TEST_F(EndingTest, CtrlCWithAShortGraceStillTerminatesBeforeItKills) {
  ending_.workers_started();
  ending_.order_interrupt(kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kInterrupt);
  EXPECT_EQ(step(kWorking, kBegin + kSecond / 2), kTerminate);
  EXPECT_EQ(step(kWorking, kBegin + kSecond), kKill);
  Ending at_once;
  at_once.workers_started();
  at_once.order_interrupt(0, kBegin);
  EXPECT_EQ(at_once.advance(kWorking, kBegin).action, kKill);
}

TEST_F(EndingTest, CtrlCDuringAnotherStopOnlyShortensIt) {
  ending_.workers_started();
  ending_.order_stop(60 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kTerminate);
  ending_.order_interrupt(30 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kNothing);
  EXPECT_EQ(last_.again_ns, 30 * kSecond);
  // The other way round: TERM follows immediately.
  Ending other;
  other.workers_started();
  other.order_interrupt(30 * kSecond, kBegin);
  EXPECT_EQ(other.advance(kWorking, kBegin).action, kInterrupt);
  other.order_stop(5 * kSecond, kBegin + 1);
  EXPECT_EQ(other.advance(kWorking, kBegin + 1).action, kTerminate);
}

TEST_F(EndingTest, TerminatesThenKillsProcessesThatOutliveTheWorkers) {
  constexpr std::uint64_t kLate = kBegin + Ending::kLeaveNs;
  ending_.workers_started();
  EXPECT_EQ(step(kLeftovers, kBegin), kNothing);
  EXPECT_EQ(last_.again_ns, Ending::kLeavePollNs);
  EXPECT_EQ(step(kLeftovers, kLate), kTerminateLeftovers);
  EXPECT_EQ(step(kLeftovers, kLate), kNothing);
  EXPECT_EQ(last_.again_ns, Ending::kLeftoverGraceNs);
  EXPECT_EQ(step(kLeftovers, kLate + Ending::kLeftoverGraceNs), kKill);
  EXPECT_EQ(step(kGone, kLate + Ending::kLeftoverGraceNs), kReportClean);
}

TEST_F(EndingTest, LeavesProcessesAMomentToExitAfterTheWorkers) {
  ending_.workers_started();
  EXPECT_EQ(step(kLeftovers, kBegin), kNothing);
  // A rank that starts again restarts the wait.
  EXPECT_EQ(step(kWorking, kBegin + Ending::kLeavePollNs), kNothing);
  EXPECT_EQ(step(kLeftovers, kBegin + Ending::kLeaveNs), kNothing);
  EXPECT_EQ(step(kGone, kBegin + Ending::kLeaveNs + Ending::kLeavePollNs), kReportClean);
}

TEST_F(EndingTest, LingersForProcessesOfWorkersThatSucceeded) {
  constexpr EndingFacts kSucceeded{.workers_ended = true, .have_succeeded = true};
  ending_.workers_started(60 * kSecond);
  EXPECT_EQ(step(kSucceeded, kBegin), kNothing);
  EXPECT_FALSE(ending_.linger());
  EXPECT_EQ(step(kSucceeded, kBegin + kSecond), kNothing);
  EXPECT_EQ(last_.again_ns, Ending::kLingerPollNs);
  ASSERT_TRUE(ending_.linger());
  EXPECT_EQ(ending_.linger()->since_ns, kBegin);
  EXPECT_EQ(ending_.linger()->until_ns, kBegin + 60 * kSecond);
  EXPECT_EQ(step(kSucceeded, kBegin + 60 * kSecond), kTerminateLeftovers);
  EXPECT_FALSE(ending_.linger());
}

TEST_F(EndingTest, DoesNotLingerAfterAFailureOrAStop) {
  ending_.workers_started(60 * kSecond);
  EXPECT_EQ(step(kLeftovers, kBegin), kNothing);
  EXPECT_EQ(step(kLeftovers, kBegin + Ending::kLeaveNs), kTerminateLeftovers);
  Ending stopped;
  stopped.workers_started(60 * kSecond);
  stopped.order_stop(5 * kSecond, kBegin);
  EXPECT_EQ(stopped.advance({.workers_ended = true, .have_succeeded = true}, kBegin).action,
            kTerminate);
}

TEST_F(EndingTest, AStopOrderDoesNotWaitForProcessesToExit) {
  ending_.workers_started();
  EXPECT_EQ(step(kLeftovers, kBegin), kNothing);
  ending_.order_stop(5 * kSecond, kBegin);
  EXPECT_EQ(step(kLeftovers, kBegin), kTerminate);
}

TEST_F(EndingTest, ReportsImmediatelyIfAStopFindsNoProcess) {
  ending_.order_stop(30 * kSecond, kBegin);
  EXPECT_EQ(step(kGone, kBegin), kReportClean);
}

TEST_F(EndingTest, KillsRepeatedlyAfterTheGrace) {
  ending_.workers_started();
  ending_.order_stop(5 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kTerminate);
  EXPECT_EQ(step(kWorking, kBegin + 4 * kSecond), kNothing);
  EXPECT_EQ(last_.again_ns, kSecond);
  EXPECT_FALSE(ending_.has_killed());
  std::uint64_t now = kBegin + 5 * kSecond;
  for (int pass = 0; pass < 20; ++pass, now += Ending::kKillPauseNs) {
    EXPECT_EQ(step(kWorking, now), kKill);
    EXPECT_EQ(step(kWorking, now), kNothing);
    EXPECT_EQ(last_.again_ns, Ending::kKillPauseNs);
  }
  EXPECT_TRUE(ending_.has_killed());
  EXPECT_EQ(step(kGone, now), kReportClean);
}

TEST_F(EndingTest, KillsImmediatelyWithoutGrace) {
  ending_.workers_started();
  ending_.order_stop(0, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kKill);
}

TEST_F(EndingTest, ShortensTheGraceButNeverLengthensIt) {
  ending_.workers_started();
  ending_.order_stop(30 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kTerminate);
  ending_.order_stop(5 * kSecond, kBegin);
  ending_.order_stop(60 * kSecond, kBegin);
  EXPECT_EQ(step(kWorking, kBegin + 5 * kSecond), kKill);
}

TEST_F(EndingTest, NamesUnkillableProcessesInsteadOfWaiting) {
  ending_.workers_started();
  ending_.order_stop(0, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kKill);
  EXPECT_EQ(step(kWorking, kBegin + Ending::kUnkillableNs - 1), kKill);
  EXPECT_EQ(step(kWorking, kBegin + Ending::kUnkillableNs), kReportLeftovers);
  EXPECT_EQ(step(kGone, kBegin + Ending::kUnkillableNs), kNothing);
}

TEST_F(EndingTest, WaitsForOutputOfExitedWorkersWithoutCallingThemUnkillable) {
  ending_.workers_started();
  ending_.order_stop(0, kBegin);
  EXPECT_EQ(step(kWorking, kBegin), kKill);
  EXPECT_EQ(step(kExitedButPrinting, kBegin + 10 * Ending::kUnkillableNs), kNothing);
  EXPECT_EQ(step(kGone, kBegin + 10 * Ending::kUnkillableNs), kReportClean);
}

}  // namespace
}  // namespace ivy
