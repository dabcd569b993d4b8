// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_state.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ivy {
namespace {

const std::vector<JobState> kStates = {
    JobState::kConnecting, JobState::kChecking,   JobState::kRunning,
    JobState::kCollecting, JobState::kStopping,   JobState::kKilling,
    JobState::kConfirming, JobState::kRestarting, JobState::kDone};
const std::vector<JobEvent> kEvents = {
    JobEvent::kAllGreeted,   JobEvent::kAllChecked,    JobEvent::kRejected,
    JobEvent::kWorkerFailed, JobEvent::kEvidenceReady, JobEvent::kAllEnded,
    JobEvent::kHostLost,     JobEvent::kInterrupted,   JobEvent::kStopRequired,
    JobEvent::kAllReported,  JobEvent::kGroupExited,   JobEvent::kRestartDue,
    JobEvent::kMemberLost,   JobEvent::kGraceChanged};

JobState after(std::vector<JobEvent> events) {
  JobState state = JobState::kConnecting;
  for (const JobEvent event : events) state = job_step(state, event).next;
  return state;
}

TEST(JobStateTest, FinishesAGoodJobThroughConfirming) {
  EXPECT_EQ(after({JobEvent::kAllGreeted, JobEvent::kAllChecked, JobEvent::kAllEnded}),
            JobState::kConfirming);
  EXPECT_EQ(after({JobEvent::kAllGreeted, JobEvent::kAllChecked, JobEvent::kAllEnded,
                   JobEvent::kAllReported}),
            JobState::kDone);
}

TEST(JobStateTest, CollectsEvidenceBeforeStoppingRanks) {
  const JobStep failed = job_step(JobState::kRunning, JobEvent::kWorkerFailed);
  EXPECT_EQ(failed.next, JobState::kCollecting);
  EXPECT_EQ(failed.action, JobAction::kCollectEvidence);
  const JobStep ready = job_step(JobState::kCollecting, JobEvent::kEvidenceReady);
  EXPECT_EQ(ready.next, JobState::kStopping);
  EXPECT_EQ(ready.action, JobAction::kStopAfterFailure);
}

TEST(JobStateTest, InterruptsStopThenKillThenExit) {
  JobState state = JobState::kRunning;
  std::vector<JobAction> actions;
  for (int i = 0; i < 3; ++i) {
    const JobStep step = job_step(state, JobEvent::kInterrupted);
    actions.push_back(step.action);
    state = step.next;
  }
  EXPECT_EQ(actions, (std::vector<JobAction>{JobAction::kStopByRequest, JobAction::kKill,
                                             JobAction::kLeaveNow}));
  EXPECT_EQ(state, JobState::kDone);
}

TEST(JobStateTest, NothingStartsTwice) {
  for (const JobState state : kStates) {
    const JobStep step = job_step(state, JobEvent::kAllChecked);
    EXPECT_EQ(step.next != state, state == JobState::kChecking) << name(state);
  }
}

TEST(JobStateTest, EveryStateBeforeDoneCanBeInterrupted) {
  for (const JobState state : kStates) {
    const JobStep step = job_step(state, JobEvent::kInterrupted);
    EXPECT_EQ(step.action != JobAction::kNothing, state != JobState::kDone) << name(state);
  }
}

TEST(JobStateTest, DoneIsFinal) {
  for (const JobEvent event : kEvents) {
    const JobStep step = job_step(JobState::kDone, event);
    EXPECT_EQ(step.next, JobState::kDone);
    EXPECT_EQ(step.action, JobAction::kNothing);
  }
}

// From every state, at most three Ctrl-C finish the job, whatever else happens.
TEST(JobStateTest, ThreeInterruptsAlwaysEndTheJob) {
  for (const JobState start : kStates) {
    JobState state = start;
    for (int i = 0; i < 3; ++i) state = job_step(state, JobEvent::kInterrupted).next;
    EXPECT_EQ(state, JobState::kDone) << name(start);
  }
}

TEST(JobStateTest, RestartsAGroupOnlyWhenEveryHostHasReported) {
  for (const JobState state : kStates) {
    const JobStep step = job_step(state, JobEvent::kGroupExited);
    const bool may = state == JobState::kStopping || state == JobState::kConfirming;
    EXPECT_EQ(step.next == JobState::kRestarting && state != JobState::kRestarting, may)
        << name(state);
    EXPECT_EQ(step.action == JobAction::kPrepareRestart, may) << name(state);
    const JobStep due = job_step(state, JobEvent::kRestartDue);
    EXPECT_EQ(due.next != state, state == JobState::kRestarting) << name(state);
  }
  EXPECT_EQ(job_step(JobState::kRestarting, JobEvent::kRestartDue).next, JobState::kRunning);
}

// Before the start, the plan is made again. A running group is stopped first, and a stop in
// progress continues. Between two attempts, the next one is planned again.
TEST(JobStateTest, HandlesTheLossOfADispensableHost) {
  const struct {
    JobState state;
    JobStep step;
  } rows[] = {
      {JobState::kConnecting, {JobState::kConnecting, JobAction::kContinueBringUp}},
      {JobState::kChecking, {JobState::kChecking, JobAction::kContinueBringUp}},
      {JobState::kRunning, {JobState::kStopping, JobAction::kStopAfterFailure}},
      {JobState::kCollecting, {JobState::kStopping, JobAction::kStopAfterFailure}},
      {JobState::kStopping, {JobState::kStopping, JobAction::kNothing}},
      {JobState::kConfirming, {JobState::kConfirming, JobAction::kNothing}},
      {JobState::kKilling, {JobState::kKilling, JobAction::kNothing}},
      {JobState::kRestarting, {JobState::kRestarting, JobAction::kPrepareRestart}},
      {JobState::kDone, {JobState::kDone, JobAction::kNothing}},
  };
  for (const auto& row : rows) {
    const JobStep step = job_step(row.state, JobEvent::kMemberLost);
    EXPECT_EQ(step.next, row.step.next) << name(row.state);
    EXPECT_EQ(step.action, row.step.action) << name(row.state);
  }
}

// Between two attempts no worker runs, so there is nothing to stop or to wait for.
TEST(JobStateTest, EndsImmediatelyBetweenAttempts) {
  for (const JobEvent event : {JobEvent::kInterrupted, JobEvent::kStopRequired, JobEvent::kHostLost,
                               JobEvent::kRejected}) {
    const JobStep step = job_step(JobState::kRestarting, event);
    EXPECT_EQ(step.next, JobState::kDone);
    EXPECT_EQ(step.action, JobAction::kFinish);
  }
}

// A stop is never revoked: once stopping, no event leads to a state with running workers, except a
// restart, which first proves that no process of the attempt is left.
TEST(JobStateTest, NeverRevokesAStop) {
  const std::set<JobState> later = {JobState::kStopping, JobState::kKilling, JobState::kDone};
  for (const JobState state : {JobState::kStopping, JobState::kKilling})
    for (const JobEvent event : kEvents) {
      if (event == JobEvent::kGroupExited) continue;
      EXPECT_TRUE(later.contains(job_step(state, event).next)) << name(state);
    }
}

}  // namespace
}  // namespace ivy
