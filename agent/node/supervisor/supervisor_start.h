// SPDX-License-Identifier: Apache-2.0
// The arguments and the exit codes of a supervisor.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/workers/lease.h"

namespace ivy {

// Exit codes if SupervisorStart.records_outcome is set; otherwise all but the second are replaced
// by 0.
inline constexpr int kSupervisorOk = 0;         // Every worker exited with 0.
inline constexpr int kSupervisorLeftovers = 1;  // Some processes could not be killed.
inline constexpr int kSupervisorWorkerFailed = 10;
inline constexpr int kSupervisorStopped = 11;       // Stopped before all workers had exited.
inline constexpr int kSupervisorLauncherLost = 12;  // The lease expired without a launcher.
inline constexpr int kSupervisorNothingRan = 13;    // No worker was ever started.

// Passed on by the warden. All descriptors belong to the supervisor and are close-on-exec.
struct SupervisorStart {
  std::string job_id;
  std::uint32_t host = 0;
  JobDirectory directory;         // Exists; the warden removes it after the supervisor's exit.
  std::string program_directory;  // Contains ivy-node and the other programs of this build.
  int listening_fd = -1;          // The command socket: listening, non-blocking.
  int link_fd = -1;               // The first link: a connected stream socket, blocking mode.
  LinkPeer peer = LinkPeer::kLauncher;
  int warden_pidfd = -1;  // Readable when the warden has exited: stop everything, then exit.
  pid_t warden_pid = 0;
  // The task of the scheduler's step that contains us; 0 if none. The scheduler's signals reach us
  // only if they reach every process below the task. The task reports them to the launcher
  // (dial.h), so they are ignored here. If the task is killed, the scheduler may no longer see this
  // process, so the job ends.
  pid_t step_task = 0;
  bool records_outcome = false;  // The exit code is recorded and tells how the job ended.
  // A pipe on which the warden describes the job's containment (Containment::describe), which it
  // probes while the supervisor starts.
  int containment_fd = -1;
  // A pipe to the warden. One byte means that the supervisor has succeeded and is the last process
  // of the job; the warden then removes the directory and exits concurrently. -1: the warden waits
  // for the supervisor's exit.
  int exit_notice_fd = -1;
};

}  // namespace ivy
