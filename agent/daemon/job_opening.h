// How a stream comes to a supervisor: a warden is started, or the command socket of one that lives
// is connected to. Thread: the loop's; nothing here waits for a peer. `start_warden` takes as long
// as the kernel needs to execute ivy-node (posix_spawn: gRPC's threads forbid a plain fork).
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/daemon/job_registry.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// What decides about an Open, and what it decides. Pure.
struct OpenFacts {
  bool reattach = false;
  bool lives = false;             // The job runs on this host.
  bool same_description = false;  // It was opened with the same words.
  bool has_ended = false;         // It ran here, and has ended.
  bool draining = false;
  bool has_bundle = false;
};
enum class OpenStep { kAttach, kStart, kNeedBundle };
Result<OpenStep> decide_open(const OpenFacts& facts);

struct WardenRequest {
  std::string directory;  // Of the bundle: holds ivy-node.
  JobKey key;
  std::string cgroup;       // To live in; made when it is missing. Empty: the agent's own.
  std::string record;       // For the warden to tell (warden.h).
  Environment environment;  // Of warden, supervisor, and in the end of the workers.
};

struct StartedWarden {
  pid_t pid = -1;
  int pidfd = -1;    // -1 when no descriptor was left.
  int carrier = -1;  // Connected to the supervisor; non-blocking, close-on-exec.
};

// Unavailable: no memory, no descriptor, or ivy-node does not run. Own session, clean signals, all
// descriptors but the carrier closed.
Result<StartedWarden> start_warden(const WardenRequest& request);

// NotFound: no supervisor listens there (yet, or any more). Unavailable: it does, and has no room.
Result<int> connect_to_job(const JobKey& key);

// The agent's environment without what systemd and sshd have told the agent alone. Pure.
Environment environment_for_jobs(const Environment& own);

}  // namespace ivy
