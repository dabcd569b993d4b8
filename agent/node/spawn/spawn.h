// SPDX-License-Identifier: Apache-2.0
// Starts one process of a worker: the only place between clone and exec. Calls only what is
// async-signal-safe there. Thread: any. Source of the order of steps: see
// "Spawning" in agent/node/README.md.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/spawn/spawn_limits.h"
#include "proto/contract/core_list.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Variables that several processes get, also in the form that execve takes: made once, because a
// copy of 80 variables for each of 32 workers would cost their start 0.7 ms.
struct SharedEnvironment {
  SharedEnvironment() = default;
  explicit SharedEnvironment(Environment of_all);

  Environment variables;
  std::vector<std::string> words;  // NAME=VALUE, in the same order.
};

struct SpawnRequest {
  std::vector<std::string> arguments;  // argv; arguments[0] is the name that the program sees.
  std::string executable;              // Absolute, or relative to working_directory.
  Environment environment;             // Of the process, followed by `shared`.
  std::shared_ptr<const SharedEnvironment> shared;  // Except what `environment` sets; or null.
  std::string working_directory;                    // It is an absolute path.
  int stdin_fd = -1;  // -1: /dev/null. The caller keeps ownership of all three.
  int stdout_fd = -1;
  int stderr_fd = -1;
  bool own_session = false;  // If false, it gets a new process group in the supervisor's session.
  int cgroup_fd = -1;        // Directory of a cgroup v2 to start in; -1: none.
  CoreList cores;            // Processors to run on; empty: ours.
  std::optional<int> memory_node;     // NUMA node whose memory it prefers; only with `cores`.
  std::optional<SpawnLimits> limits;  // Nothing: ours, but for the user's limit of core files.
};

struct SpawnFailure {
  std::string step;  // "clone", "setpgid", "chdir", "exec", "stdin"...
  std::string path;  // The path that the step used.
  int error = 0;
};

struct SpawnedProcess {
  pid_t pid = -1;
  int pidfd = -1;  // Owned by the caller; readable when the process has ended.
};

// A process group of its own, clean signal state and mask, standard descriptors, everything else
// closed on exec, the limit of locked memory raised to the hard limit. Returns when exec has
// succeeded or failed, so a failure to execute is never mistaken for exit code 127. A script
// without "#!" is a failure (ENOEXEC), not a shell script.
struct SpawnResult {
  SpawnedProcess process;  // pid > 0 on success.
  SpawnFailure failure;    // step is not empty on failure.
  bool ok() const { return process.pid > 0; }
};
SpawnResult spawn(const SpawnRequest& request);

// The same in two halves, so that many processes can be started before the first has executed its
// program: on several cores their starts overlap.
struct SpawnMemory;
struct PendingSpawn {
  SpawnedProcess process;
  SpawnFailure failure;  // Already failed: finish_spawn only hands it on.
  // The memory that the child uses. finish_spawn must be called before it is freed.
  std::shared_ptr<SpawnMemory> memory;
  int report_fd = -1;       // Owned; -1: the child shares our memory and reports there.
  bool is_awaited = false;  // await_spawn() has returned.
  bool has_failed = false;  // A step has failed, and the child has exited.
};
PendingSpawn begin_spawn(const SpawnRequest& request);
// Blocks until the program is executed, or a step before it has failed; a file system that does not
// answer may hold it up for ever. Leaves the process of a failed start for finish_spawn to reap.
void await_spawn(PendingSpawn& pending);
// Calls await_spawn() unless it was called, and says what became of the start.
SpawnResult finish_spawn(PendingSpawn pending);

// Looks a name up as execvp does. A name with '/' is taken as it is, relative to working_directory.
// NotFound, or PermissionDenied when only a file that cannot be executed was found. `errno_value`
// (may be null) receives ENOENT, EACCES or EISDIR.
Result<std::string> find_executable(const std::string& name, const std::string& search_path,
                                    const std::string& working_directory, int* errno_value);

}  // namespace ivy
