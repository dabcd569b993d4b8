// SPDX-License-Identifier: Apache-2.0
// The life of a job as a table. Pure; thread: any.
//
//   connecting -> checking -> running -> confirming -> done          everything went well
//                                |-> collecting -> stopping -> done  a worker failed
//                                |------------------^     |          Ctrl-C, --timeout, a lost host
//                                                         '-> killing -> done   Ctrl-C again
//
//   stopping, confirming -> restarting -> running     a worker failed and a restart is left
//                               '-> done              Ctrl-C, --timeout, a lost host: nothing runs
//
// If the job can do without a lost host, only this attempt ends, as after a worker's failure.
//
// In `collecting`, evidence is gathered before any worker is stopped: notices of dead ranks
// (launcher/README.md, "The abort epoch"), the dumps of a collective library's watchdog, stacks.
#pragma once

namespace ivy {

enum class JobState {
  kConnecting,  // Hosts are dialled and greeted.
  kChecking,    // Every host tests the address that workers will be given.
  kRunning,     // Start was sent to every host.
  kCollecting,  // A worker failed; evidence is gathered, no worker has been stopped yet.
  kStopping,    // Stop was sent; the grace runs.
  kKilling,     // Kill was sent to every host.
  kConfirming,  // All workers have ended by themselves; hosts prove that nothing is left.
  kRestarting,  // Nothing of the last generation is left; the next one is waiting to start.
  kDone,
};

enum class JobEvent {
  kAllGreeted,     // Every host has answered Hello.
  kAllChecked,     // Every host reaches host 0, and the plan has no refusals.
  kRefused,        // No worker has started and none will: hosts, plan, input, or --dry-run.
  kWorkerFailed,   // A worker ended badly, or could not be started.
  kEvidenceReady,  // All awaited evidence is there, or has timed out.
  kAllEnded,       // Every worker of the group has ended.
  kHostLost,       // A host, or its supervisor, is lost, and the job cannot do without it.
  kMemberLost,     // A host is lost, but enough hosts are left (launcher/job/membership.h).
  kGraceChanged,   // While workers are being stopped: a new grace was requested.
  kInterrupted,    // The user sent Ctrl-C, TERM, HUP or QUIT.
  kTimeUp,         // --timeout expired, or the reader of ivyrun's output exited.
  kAllReported,    // Every host that is not lost has reported that nothing is left; all output is
                   // here.
  kGroupGone,      // The same, and the group will run again.
  kRestartDue,     // The pause is over, and the store has begun the next generation.
};

enum class JobAction {
  kNothing,
  kCheckAddresses,
  kStartWorkers,
  kCollectEvidence,
  kStopAfterFailure,  // Stop with the short grace.
  kStopByRequest,     // Stop with the long grace.
  kKill,              // Stop without any grace at all.
  kConfirm,           // All workers have ended: the hosts' reports are awaited.
  kFinish,            // Tell every host that it may forget the job; show the summary.
  kLeave,             // Exit immediately; leases stop what is left.
  kPrepareRestart,    // The store begins the next generation; the pause runs.
  kRestartWorkers,    // The same workers, once more.
};

struct JobStep {
  JobState next;
  JobAction action;
};

// Returns what to do; an event that has no meaning in a state changes nothing.
JobStep job_step(JobState state, JobEvent event);

const char* name(JobState state);
// No worker has been started yet.
inline bool is_before_start(JobState state) {
  return state == JobState::kConnecting || state == JobState::kChecking;
}

}  // namespace ivy
