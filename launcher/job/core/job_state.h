// SPDX-License-Identifier: Apache-2.0
// The states of a job, as a table of (state, event) to (state, action). Pure; thread: any.
//
//   connecting -> checking -> running -> confirming -> done          everything went well
//                                |-> collecting -> stopping -> done  a worker failed
//                                |------------------^     |          Ctrl-C, --timeout, a lost host
//                                                         '-> killing -> done   Ctrl-C again
//
//   stopping, confirming -> restarting -> running     a worker failed and a restart is left
//                               '-> done              Ctrl-C, --timeout, a lost host: nothing runs
//
// A lost host that the job can do without ends only this attempt, as a worker's failure does.
//
// In `collecting`, no worker has been stopped yet, while evidence about the failure arrives:
// notices of dead ranks (launcher/README.md, "The abort epoch"), the dumps of a collective
// library's watchdog, stacks.
#pragma once

namespace ivy {

enum class JobState {
  kConnecting,  // Hosts are being dialled and have not all answered Hello.
  kChecking,    // Every host tests the address that workers will be given.
  kRunning,     // Start was sent to every host.
  kCollecting,  // A worker failed; evidence is gathered, no worker has been stopped yet.
  kStopping,    // Stop was sent, and the grace has started.
  kKilling,     // Stop without a grace was sent to every host.
  kConfirming,  // All workers have exited by themselves; hosts report that no process is left.
  kRestarting,  // Nothing of the last generation is left, and the next one has not started.
  kDone,
};

enum class JobEvent {
  kAllGreeted,     // Every host has answered Hello.
  kAllChecked,     // Every planned host can connect to the first one, and the store listens.
  kRejected,       // No worker of this attempt will start: hosts, plan, input, or --dry-run.
  kWorkerFailed,   // A worker failed, or could not be started.
  kEvidenceReady,  // The awaited evidence has arrived, or has timed out.
  kAllEnded,       // Every worker of the group has exited.
  kHostLost,       // A host, its supervisor or a service is lost, and the job needs it.
  kMemberLost,     // A host is lost, but enough hosts are left (launcher/job/hosts/membership.h).
  kGraceChanged,   // While workers are being stopped: a new grace was requested.
  kInterrupted,    // The user sent Ctrl-C, TERM, HUP or QUIT.
  // The launcher itself stops the job: --timeout expired, the reader of its output exited,
  // --on-stall stop, or an internal error.
  kStopRequired,
  // Every host that is not lost has reported that nothing is left, and all output is here.
  kAllReported,
  kGroupExited,  // The same, but the group will run again.
  kRestartDue,   // The pause is over, and everything that a restart needs is ready.
};

enum class JobAction {
  kNothing,          // Nothing, or the coroutine that has applied the event does what follows.
  kContinueBringUp,  // A host was left out: bring-up goes on without it.
  kCollectEvidence,
  kStopAfterFailure,  // Stop with the short grace (kGraceAfterFailure).
  kStopByRequest,     // Stop with the long grace (kGraceByRequest).
  kKill,              // Stop without a grace.
  kConfirm,           // All workers have exited: wait for the hosts' reports.
  kFinish,            // Tell every host that it may forget the job, and print the summary.
  kLeaveNow,          // Exit immediately; the hosts' leases stop what is left.
  kPrepareRestart,    // Start the steps of a restart (Restarts::prepare()).
};

struct JobStep {
  JobState next;
  JobAction action;
};

// Returns the next state and its action. An event that means nothing in a state changes nothing.
JobStep job_step(JobState state, JobEvent event);

const char* name(JobState state);
// True if no worker has been started yet.
inline bool is_before_start(JobState state) {
  return state == JobState::kConnecting || state == JobState::kChecking;
}

}  // namespace ivy
