// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_state.h"

namespace ivy {
namespace {

struct Row {
  JobState state;
  JobEvent event;
  JobStep step;
};

using S = JobState;
using E = JobEvent;
using A = JobAction;

// The coroutines of a bring-up and of a restart (../bring_up.cc, ../restarts.cc) apply kAllGreeted,
// kAllChecked and kRestartDue, and go on with the next step themselves.
//
// Before Start, hosts have no workers and answer a kill immediately, so every failure there leads
// to a kill.
constexpr Row kTable[] = {
    {S::kConnecting, E::kAllGreeted, {S::kChecking, A::kNothing}},
    {S::kConnecting, E::kMemberLost, {S::kConnecting, A::kContinueBringUp}},
    {S::kConnecting, E::kRejected, {S::kKilling, A::kKill}},
    {S::kConnecting, E::kHostLost, {S::kKilling, A::kKill}},
    {S::kConnecting, E::kInterrupted, {S::kKilling, A::kKill}},
    {S::kConnecting, E::kStopRequired, {S::kKilling, A::kKill}},

    {S::kChecking, E::kAllChecked, {S::kRunning, A::kNothing}},
    {S::kChecking, E::kRejected, {S::kKilling, A::kKill}},
    {S::kChecking, E::kHostLost, {S::kKilling, A::kKill}},
    {S::kChecking, E::kMemberLost, {S::kChecking, A::kContinueBringUp}},
    {S::kChecking, E::kInterrupted, {S::kKilling, A::kKill}},
    {S::kChecking, E::kStopRequired, {S::kKilling, A::kKill}},

    {S::kRunning, E::kWorkerFailed, {S::kCollecting, A::kCollectEvidence}},
    {S::kRunning, E::kAllEnded, {S::kConfirming, A::kConfirm}},
    {S::kRunning, E::kRejected, {S::kKilling, A::kKill}},
    {S::kRunning, E::kHostLost, {S::kStopping, A::kStopAfterFailure}},
    {S::kRunning, E::kMemberLost, {S::kStopping, A::kStopAfterFailure}},
    {S::kRunning, E::kInterrupted, {S::kStopping, A::kStopByRequest}},
    {S::kRunning, E::kStopRequired, {S::kStopping, A::kStopAfterFailure}},

    {S::kCollecting, E::kEvidenceReady, {S::kStopping, A::kStopAfterFailure}},
    {S::kCollecting, E::kAllEnded, {S::kConfirming, A::kConfirm}},
    {S::kCollecting, E::kHostLost, {S::kStopping, A::kStopAfterFailure}},
    {S::kCollecting, E::kMemberLost, {S::kStopping, A::kStopAfterFailure}},
    {S::kCollecting, E::kInterrupted, {S::kStopping, A::kStopByRequest}},
    {S::kCollecting, E::kStopRequired, {S::kStopping, A::kStopAfterFailure}},

    {S::kStopping, E::kGraceChanged, {S::kStopping, A::kStopByRequest}},
    {S::kStopping, E::kInterrupted, {S::kKilling, A::kKill}},
    {S::kStopping, E::kAllReported, {S::kDone, A::kFinish}},
    {S::kStopping, E::kGroupExited, {S::kRestarting, A::kPrepareRestart}},

    {S::kConfirming, E::kInterrupted, {S::kKilling, A::kKill}},
    {S::kConfirming, E::kStopRequired, {S::kKilling, A::kKill}},
    {S::kConfirming, E::kAllReported, {S::kDone, A::kFinish}},
    {S::kConfirming, E::kGroupExited, {S::kRestarting, A::kPrepareRestart}},

    {S::kRestarting, E::kRestartDue, {S::kRunning, A::kNothing}},
    {S::kRestarting, E::kRejected, {S::kDone, A::kFinish}},
    {S::kRestarting, E::kHostLost, {S::kDone, A::kFinish}},
    {S::kRestarting, E::kMemberLost, {S::kRestarting, A::kPrepareRestart}},
    {S::kRestarting, E::kInterrupted, {S::kDone, A::kFinish}},
    {S::kRestarting, E::kStopRequired, {S::kDone, A::kFinish}},

    {S::kKilling, E::kInterrupted, {S::kDone, A::kLeaveNow}},
    {S::kKilling, E::kAllReported, {S::kDone, A::kFinish}},
};

}  // namespace

JobStep job_step(JobState state, JobEvent event) {
  for (const Row& row : kTable)
    if (row.state == state && row.event == event) return row.step;
  return JobStep{state, JobAction::kNothing};
}

const char* name(JobState state) {
  switch (state) {
    case S::kConnecting:
      return "connecting";
    case S::kChecking:
      return "checking";
    case S::kRunning:
      return "running";
    case S::kCollecting:
      return "collecting";
    case S::kStopping:
      return "stopping";
    case S::kKilling:
      return "killing";
    case S::kConfirming:
      return "confirming";
    case S::kRestarting:
      return "restarting";
    case S::kDone:
      return "done";
  }
  return "?";
}

}  // namespace ivy
