// SPDX-License-Identifier: Apache-2.0
// Gets a socket to a job's supervisor: from a new warden, or from the command socket of a running
// supervisor. Thread: any; nothing here waits for a peer. start_warden() returns only when the
// kernel has executed ivy-node (posix_spawn: gRPC's threads forbid a plain fork), so a stalled file
// system delays it: call it in tasks of a BlockingPool.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/daemon/jobs/job_registry.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct WardenRequest {
  std::string directory;  // The bundle's directory, which holds ivy-node.
  JobKey key;
  std::string cgroup;       // The warden's cgroup, made if it is missing. If empty, the agent's.
  std::string record;       // File for the warden's record (warden.h).
  Environment environment;  // For the warden and the supervisor, and through them the workers.
};

struct StartedWarden {
  pid_t pid = -1;
  Descriptor pidfd;      // Empty if no descriptor was free.
  Descriptor transport;  // Connected to the supervisor; non-blocking, close-on-exec.
};

// Starts the warden in its own session, with default signals and no descriptor but the transport.
// Returns Unavailable if memory or descriptors are missing, or if ivy-node does not run.
Result<StartedWarden> start_warden(const WardenRequest& request);

// Connects to the command socket. Returns NotFound if no supervisor listens there, and Unavailable
// if its backlog is full.
Result<int> connect_to_job(const JobKey& key);

// Returns the agent's environment without the variables that systemd and sshd set for the agent
// only. Pure.
Environment environment_for_jobs(const Environment& own);

}  // namespace ivy
