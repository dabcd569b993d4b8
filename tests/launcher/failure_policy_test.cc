// SPDX-License-Identifier: Apache-2.0
// The job's reaction to the failure of a worker.
#include "launcher/plan/failure_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One of four workers has failed; the other three have run since the start.
FailureFacts one_of_four(milliseconds run_time = seconds(60)) {
  FailureFacts facts;
  facts.job_runs = true;
  facts.live = 3;
  facts.survivors = 3;
  facts.run_time = run_time;
  return facts;
}

FailurePolicy shrink(int min_workers = 1) {
  return FailurePolicy({.on_failure = OnFailure::kShrink, .min_workers = min_workers});
}
FailurePolicy replace(int most) {
  return FailurePolicy({.on_failure = OnFailure::kReplace, .max_replacements = most});
}

TEST(FailurePolicyTest, EndsTheJobOnEveryFailureWithoutTheFlag) {
  const FailureDecision decision = FailurePolicy({}).decide(one_of_four());
  EXPECT_EQ(decision.action, FailureAction::kEndJob);
  EXPECT_EQ(decision.why_not, "");
}

TEST(FailurePolicyTest, DoesNotSaveAJobThatIsEnding) {
  FailureFacts facts = one_of_four();
  facts.job_runs = false;
  for (FailurePolicy policy : {shrink(), replace(3)}) {
    EXPECT_EQ(policy.decide(facts).action, FailureAction::kEndJob);
    EXPECT_EQ(policy.decide(facts).why_not, "");
  }
}

TEST(FailurePolicyTest, ShrinksUntilTheLastWorkerFails) {
  for (int live = 3; live >= 1; --live) {
    FailureFacts facts = one_of_four();
    facts.live = live;
    EXPECT_EQ(shrink().decide(facts).action, FailureAction::kContinue) << live;
  }
  FailureFacts last = one_of_four();
  last.live = 0;
  last.done = 3;
  EXPECT_EQ(shrink().decide(last).action, FailureAction::kEndJob);
  EXPECT_NE(shrink().decide(last).why_not, "");
}

TEST(FailurePolicyTest, CountsSuccessfulWorkersAsRemainingWhenShrinking) {
  FailureFacts facts = one_of_four();
  facts.live = 1;
  facts.done = 1;
  EXPECT_EQ(shrink(2).decide(facts).action, FailureAction::kContinue);
  EXPECT_EQ(shrink(3).decide(facts).action, FailureAction::kEndJob);
  EXPECT_NE(shrink(3).decide(facts).why_not.find("--min-workers is 3"), std::string::npos);
}

TEST(FailurePolicyTest, EndsTheJobIfAProgramCannotBeStarted) {
  FailureFacts facts = one_of_four();
  facts.could_not_start = true;
  EXPECT_EQ(shrink().decide(facts).action, FailureAction::kEndJob);
  EXPECT_EQ(replace(3).decide(facts).action, FailureAction::kEndJob);
}

TEST(FailurePolicyTest, ReplacesUpToTheLimitAndImmediatelyAfterALongRun) {
  FailurePolicy three = replace(3);
  for (int number = 1; number <= 3; ++number) {
    const FailureDecision decision = three.decide(one_of_four());
    EXPECT_EQ(decision.action, FailureAction::kReplace);
    EXPECT_EQ(decision.pause, milliseconds(0));
    EXPECT_EQ(three.replacements(), number);
  }
  const FailureDecision fourth = three.decide(one_of_four());
  EXPECT_EQ(fourth.action, FailureAction::kEndJob);
  EXPECT_NE(fourth.why_not.find("--max-restarts is 3"), std::string::npos) << fourth.why_not;
}

TEST(FailurePolicyTest, PausesLongerAfterEachQuickFailureAndEndsTheJobAtTheFifth) {
  FailurePolicy many = replace(100);
  for (const int pause_s : {1, 2, 4, 8}) {
    const FailureDecision decision = many.decide(one_of_four(seconds(1)));
    EXPECT_EQ(decision.action, FailureAction::kReplace);
    EXPECT_EQ(decision.pause, seconds(pause_s));
  }
  EXPECT_EQ(many.decide(one_of_four(seconds(1))).action, FailureAction::kEndJob);
  FailurePolicy again = replace(100);
  for (int i = 0; i < 4; ++i) (void)again.decide(one_of_four(seconds(1)));
  EXPECT_EQ(again.decide(one_of_four(seconds(60))).pause, milliseconds(0));
  EXPECT_EQ(again.decide(one_of_four(seconds(1))).pause, seconds(1));
}

TEST(FailurePolicyTest, NeedsASurvivorThatHasTheState) {
  FailurePolicy policy = replace(10);
  EXPECT_TRUE(policy.is_survivor(0, milliseconds(0)));
  EXPECT_FALSE(policy.is_survivor(1, seconds(9)));
  EXPECT_TRUE(policy.is_survivor(1, seconds(10)));
  FailureFacts facts = one_of_four();
  facts.survivors = 0;
  EXPECT_EQ(policy.decide(facts).action, FailureAction::kEndJob);
  facts.live = 0;
  EXPECT_EQ(policy.decide(facts).action, FailureAction::kEndJob);
}

TEST(FailurePolicyTest, DoesNotReplaceWorkersNearTheEndOfTheAllocation) {
  FailureFacts facts = one_of_four();
  facts.is_preempted = true;
  EXPECT_EQ(replace(3).decide(facts).action, FailureAction::kContinue);
}

}  // namespace
}  // namespace ivy
