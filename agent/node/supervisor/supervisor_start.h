// SPDX-License-Identifier: Apache-2.0
// The arguments of a supervisor.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/workers/lease.h"

namespace ivy {

// Handed over by the warden. All descriptors belong to the supervisor and are close-on-exec.
struct SupervisorStart {
  std::string job_id;
  std::uint32_t host = 0;
  JobDirectory directory;         // Exists; the warden removes it after the supervisor's end.
  std::string program_directory;  // Of ivy-node and the other programs of this build.
  int listening_fd = -1;          // The command socket: listening, non-blocking.
  int transport_fd = -1;          // The first transport: a connected stream socket, blocking mode.
  TransportKind transport = TransportKind::kLocal;
  int warden_pidfd = -1;  // Readable when the warden has died: end everything, then exit.
  pid_t warden_pid = 0;
  // The task of the scheduler's step that holds us; 0: none. The scheduler's signals reach us only
  // where they reach every process below it, and it tells the launcher of them (dial.h), so they
  // are ignored here. When the task dies, the scheduler may have lost sight of us: end the job.
  pid_t step_task = 0;
  bool tells_outcome = false;  // The exit code is recorded: it says how the job ended.
  // A pipe on which the warden says how it holds the job together (Containment::describe), which it
  // finds out while we start.
  int containment_fd = -1;
  // A pipe to the warden, for one byte once all went well and nothing of the job is left but us:
  // the warden then removes the directory and ends, beside us. -1: it waits for our end.
  int farewell_fd = -1;
};

}  // namespace ivy
