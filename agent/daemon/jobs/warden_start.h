// SPDX-License-Identifier: Apache-2.0
// Connects a stream to a supervisor: starts a warden, or connects to the command socket of one that
// lives. Thread: any; nothing here waits for a peer. `start_warden` takes as long as the kernel
// needs to execute ivy-node (posix_spawn: gRPC's threads forbid a plain fork), so its file system
// may hold it up: call it in tasks of a BlockingPool.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/daemon/jobs/job_registry.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The facts that decide about an Open, and the decision. Pure.
struct OpenFacts {
  bool reattach = false;
  bool lives = false;             // The job runs on this host.
  bool same_description = false;  // It was opened with the same description.
  bool has_ended = false;         // It ran here, and has ended.
  bool draining = false;
  bool has_bundle = false;
};
enum class OpenStep { kAttach, kStart, kNeedBundle };
Result<OpenStep> decide_open(const OpenFacts& facts);

struct WardenRequest {
  std::string directory;  // The bundle's directory, which holds ivy-node.
  JobKey key;
  std::string cgroup;       // The warden's cgroup; made when it is missing. Empty: the agent's own.
  std::string record;       // File for the warden's record (warden.h).
  Environment environment;  // For warden and supervisor, and in the end the workers.
};

struct StartedWarden {
  pid_t pid = -1;
  Descriptor pidfd;      // None when no descriptor was left.
  Descriptor transport;  // Connected to the supervisor; non-blocking, close-on-exec.
};

// The warden gets a session of its own and clean signals, and all descriptors but the transport are
// closed. Unavailable: no memory, no descriptor, or ivy-node does not run.
Result<StartedWarden> start_warden(const WardenRequest& request);

// NotFound: no supervisor listens there (yet, or any longer). Unavailable: its backlog is full.
Result<int> connect_to_job(const JobKey& key);

// The agent's environment without variables that systemd and sshd set for the agent alone. Pure.
Environment environment_for_jobs(const Environment& own);

}  // namespace ivy
