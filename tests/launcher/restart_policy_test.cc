// SPDX-License-Identifier: Apache-2.0
// Failures that lead to a restart, and the pause before it.
#include "launcher/plan/restart_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

AttemptFacts failure(int restarts, milliseconds run_time = seconds(60)) {
  AttemptFacts facts;
  facts.restarts = restarts;
  facts.run_time = run_time;
  facts.worker_failed = true;
  return facts;
}

RestartPolicy policy(int max_restarts) { return RestartPolicy({.max_restarts = max_restarts}); }

TEST(RestartPolicyTest, RestartsAsOftenAsAllowed) {
  RestartPolicy three = policy(3);
  for (int restarts = 0; restarts < 3; ++restarts)
    EXPECT_TRUE(three.decide(failure(restarts)).restarts) << restarts;
  const RestartDecision last = three.decide(failure(3));
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why_not, "") << "the numbers of the attempts show that none is left";
  EXPECT_FALSE(policy(0).decide(failure(0)).restarts);
}

TEST(RestartPolicyTest, RestartsOnlyAfterAWorkersOwnFailure) {
  AttemptFacts succeeded = failure(0);
  succeeded.worker_failed = false;
  EXPECT_FALSE(policy(3).decide(succeeded).restarts);
  AttemptFacts ending = failure(0);
  ending.job_is_ending = true;
  EXPECT_FALSE(policy(3).decide(ending).restarts);
  EXPECT_EQ(policy(3).decide(ending).why_not, "");
  AttemptFacts not_started = failure(0);
  not_started.could_not_start = true;
  EXPECT_FALSE(policy(3).decide(not_started).restarts);
  EXPECT_NE(policy(3).decide(not_started).why_not, "");
  AttemptFacts leftovers = failure(0);
  leftovers.has_leftovers = true;
  EXPECT_FALSE(policy(3).decide(leftovers).restarts);
  EXPECT_NE(policy(3).decide(leftovers).why_not, "");
}

TEST(RestartPolicyTest, DoublesThePauseUntilAnAttemptSucceeds) {
  RestartLimits limits;
  limits.max_restarts = 100;
  limits.max_quick_failures = 50;
  RestartPolicy patient(limits);
  const std::vector<int> expected_s = {1, 2, 4, 8, 16, 30, 30};
  int restarts = 0;
  for (const int expected : expected_s)
    EXPECT_EQ(patient.decide(failure(restarts++, milliseconds(9'999))).pause, seconds(expected));
  EXPECT_EQ(patient.decide(failure(restarts++, seconds(10))).pause, seconds(1));
  EXPECT_EQ(patient.decide(failure(restarts++, seconds(0))).pause, seconds(1));
  EXPECT_EQ(patient.decide(failure(restarts++, seconds(0))).pause, seconds(2));
}

TEST(RestartPolicyTest, GivesUpWhenNoAttemptMakesProgress) {
  RestartPolicy many = policy(100);
  for (int restarts = 0; restarts < 4; ++restarts)
    EXPECT_TRUE(many.decide(failure(restarts, seconds(1))).restarts);
  const RestartDecision last = many.decide(failure(4, seconds(1)));
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why_not,
            "5 attempts in a row failed within 10 s of their start; 96 of 100 restarts are not "
            "used");
}

TEST(RestartPolicyTest, ResetsTheCountAfterALongAttempt) {
  RestartPolicy many = policy(100);
  for (int restarts = 0; restarts < 40; ++restarts)
    EXPECT_TRUE(many.decide(failure(restarts, seconds(restarts % 5 == 4 ? 10 : 1))).restarts)
        << restarts;
}

TEST(RestartPolicyTest, MakesASmallNumberOfRestartsInFull) {
  RestartPolicy four = policy(4);
  for (int restarts = 0; restarts < 4; ++restarts)
    EXPECT_TRUE(four.decide(failure(restarts, seconds(0))).restarts) << restarts;
  EXPECT_EQ(four.decide(failure(4, seconds(0))).why_not, "");
}

AttemptFacts loss(int restarts, milliseconds run_time = seconds(60)) {
  AttemptFacts facts;
  facts.restarts = restarts;
  facts.run_time = run_time;
  facts.host_lost = true;
  return facts;
}

TEST(RestartPolicyTest, DoesNotCountALostHostAsARestart) {
  EXPECT_TRUE(policy(0).decide(loss(0)).restarts);
  EXPECT_TRUE(policy(2).decide(loss(2)).restarts);
  EXPECT_EQ(policy(0).decide(loss(0, seconds(1))).pause, seconds(1));
  AttemptFacts ending = loss(0);
  ending.job_is_ending = true;
  EXPECT_FALSE(policy(0).decide(ending).restarts);
  AttemptFacts not_started = loss(0);
  not_started.could_not_start = true;
  EXPECT_FALSE(policy(0).decide(not_started).restarts);
  AttemptFacts leftovers = loss(0);
  leftovers.has_leftovers = true;
  EXPECT_FALSE(policy(0).decide(leftovers).restarts);
  EXPECT_NE(policy(0).decide(leftovers).why_not, "");
}

// The loss of a host is no evidence for or against the script.
TEST(RestartPolicyTest, DoesNotCountALostHostAsAQuickFailure) {
  RestartPolicy many = policy(100);
  int restarts = 0;
  for (; restarts < 4; ++restarts) {
    EXPECT_TRUE(many.decide(failure(restarts, seconds(1))).restarts);
    EXPECT_TRUE(many.decide(loss(restarts + 1, seconds(1))).restarts);
  }
  EXPECT_FALSE(many.decide(failure(restarts, seconds(1))).restarts)
      << "five quick failures in a row";
  RestartPolicy alive = policy(100);
  for (restarts = 0; restarts < 4; ++restarts)
    EXPECT_TRUE(alive.decide(failure(restarts, seconds(1))).restarts);
  EXPECT_EQ(alive.decide(loss(restarts, seconds(10))).pause, seconds(1));
  EXPECT_TRUE(alive.decide(failure(restarts, seconds(1))).restarts) << "the series was interrupted";
}

// With an inaccurate clock relation a worker can seem to fail before its start.
TEST(RestartPolicyTest, CountsAFailureBeforeTheStartAsQuick) {
  EXPECT_EQ(policy(3).decide(failure(0, milliseconds(-5))).pause, seconds(1));
}

}  // namespace
}  // namespace ivy
