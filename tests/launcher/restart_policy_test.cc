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

AttemptFacts at_step(std::optional<double> step, int code = 1) {
  AttemptFacts facts = failure(0, seconds(100));
  facts.step = step;
  facts.cause.status = ExitStatus{.code = code, .signal = 0};
  return facts;
}

TEST(RestartPolicyTest, MeasuresProgressByStepsHoweverLongAttemptsRun) {
  RestartPolicy steps({.max_restarts = 100, .measures_steps = true});
  EXPECT_TRUE(steps.decide(at_step(10)).restarts);
  EXPECT_TRUE(steps.decide(at_step(std::nullopt)).restarts);
  EXPECT_TRUE(steps.decide(at_step(10)).restarts);
  EXPECT_TRUE(steps.decide(at_step(11)).restarts) << "step 11 was not reached before";
  EXPECT_TRUE(steps.decide(at_step(4)).restarts);
  EXPECT_TRUE(steps.decide(at_step(11)).restarts);
  const RestartDecision last = steps.decide(at_step(9));
  EXPECT_FALSE(last.restarts);
  EXPECT_TRUE(last.is_futile);
  EXPECT_EQ(last.why_not,
            "3 attempts in a row made no progress (none exceeded step 11); 100 of 100 restarts are "
            "not used");
}

TEST(RestartPolicyTest, ReportsThatNoStepWasPrinted) {
  RestartPolicy steps({.max_restarts = 5, .measures_steps = true});
  steps.decide(at_step(std::nullopt));
  steps.decide(at_step(std::nullopt));
  EXPECT_NE(steps.decide(at_step(std::nullopt))
                .why_not.find("(none printed a step that matches --progress-match)"),
            std::string::npos);
}

AttemptFacts at_file(ProgressMove move, std::optional<double> step = std::nullopt) {
  AttemptFacts facts = at_step(step);
  facts.file = move;
  facts.file_state = "latest.txt still has 1000";
  return facts;
}

TEST(RestartPolicyTest, MeasuresProgressByFiles) {
  RestartPolicy files({.max_restarts = 100, .measures_files = true});
  EXPECT_TRUE(files.decide(at_file(ProgressMove::kNone)).restarts);
  EXPECT_TRUE(files.decide(at_file(ProgressMove::kBackward)).restarts);
  EXPECT_TRUE(files.decide(at_file(ProgressMove::kForward)).restarts);
  EXPECT_TRUE(files.decide(at_file(ProgressMove::kNone)).restarts);
  for (int i = 0; i < 9; ++i)
    EXPECT_TRUE(files.decide(at_file(ProgressMove::kUnknown)).restarts)
        << "unknown progress is no evidence";
  EXPECT_TRUE(files.decide(at_file(ProgressMove::kNone)).restarts);
  const RestartDecision last = files.decide(at_file(ProgressMove::kNone));
  EXPECT_TRUE(last.is_futile);
  EXPECT_EQ(last.why_not,
            "3 attempts in a row made no progress (--progress-file: latest.txt still has 1000); "
            "100 of 100 restarts are not used");
}

TEST(RestartPolicyTest, TakesEitherMeasureOfProgress) {
  RestartPolicy both({.max_restarts = 100, .measures_steps = true, .measures_files = true});
  for (int i = 0; i < 9; ++i) {
    EXPECT_TRUE(both.decide(at_file(ProgressMove::kNone, i)).restarts);
    EXPECT_TRUE(both.decide(at_file(ProgressMove::kForward)).restarts);
  }
  both.decide(at_file(ProgressMove::kNone));
  both.decide(at_file(ProgressMove::kNone));
  EXPECT_NE(both.decide(at_file(ProgressMove::kNone))
                .why_not.find("(none exceeded step 8; --progress-file: latest.txt still has 1000)"),
            std::string::npos);
}

AttemptFacts after_operations(std::uint64_t operations, int rank = 3, int code = 1) {
  AttemptFacts facts = at_step(std::nullopt, code);
  facts.first_rank = rank;
  facts.operations = operations;
  return facts;
}

TEST(RestartPolicyTest, NotesAttemptsThatFailInTheSamePlaceAndRestartsThem) {
  RestartPolicy many = policy(100);
  EXPECT_EQ(many.decide(after_operations(812)).note, "");
  EXPECT_EQ(many.decide(after_operations(815)).note, "");
  const RestartDecision third = many.decide(after_operations(810));
  EXPECT_TRUE(third.restarts);
  EXPECT_EQ(third.note,
            "3 attempts in a row failed in the same place: rank 3 with exit 1 after 810 operations "
            "of ivycomm; with --progress-file or --progress-match, attempts without progress end "
            "the job");
  const RestartDecision fourth = many.decide(after_operations(812));
  EXPECT_TRUE(fourth.restarts);
  EXPECT_EQ(fourth.note, "") << "it was noted before";
}

TEST(RestartPolicyTest, NotesNothingIfAttemptsFailInDifferentPlaces) {
  RestartPolicy many = policy(100);
  for (const AttemptFacts& facts :
       {after_operations(812), after_operations(812), after_operations(900), after_operations(900),
        after_operations(900, 2), after_operations(900, 2, 9), after_operations(0),
        after_operations(900, 2, 9), after_operations(900, 2, 9)})
    EXPECT_EQ(many.decide(facts).note, "");
}

TEST(RestartPolicyTest, ChoosesByTheCause) {
  RestartLimits limits{.max_restarts = 100};
  limits.restart_on = std::move(parse_cause_list("1-9,host-lost")).value();
  limits.never_restart = std::move(parse_cause_list("2")).value();
  RestartPolicy listed(limits);
  EXPECT_TRUE(listed.decide(at_step(std::nullopt, 7)).restarts);
  EXPECT_EQ(listed.decide(at_step(std::nullopt, 2)).why_not, "exit 2: --never-restart has 2");
  EXPECT_EQ(listed.decide(at_step(std::nullopt, 77)).why_not,
            "exit 77 is not a cause of --restart-on");
  EXPECT_FALSE(listed.decide(at_step(std::nullopt, 77)).is_futile);
  AttemptFacts lost = loss(0);
  lost.cause.host_lost = true;
  EXPECT_TRUE(listed.decide(lost).restarts);
}

// With an inaccurate clock relation a worker can seem to fail before its start.
TEST(RestartPolicyTest, CountsAFailureBeforeTheStartAsQuick) {
  EXPECT_EQ(policy(3).decide(failure(0, milliseconds(-5))).pause, seconds(1));
}

}  // namespace
}  // namespace ivy
