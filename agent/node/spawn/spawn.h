// SPDX-License-Identifier: Apache-2.0
// Starts the process of a worker. Between clone and exec only async-signal-safe functions are
// called. Thread: any. The order of the steps is explained in "Spawning" in README.md here.
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

// Variables shared by several processes, also in the form that execve takes. Built once, because
// copying 80 variables for each of 32 workers would add 0.7 ms to their start.
struct SharedEnvironment {
  SharedEnvironment() = default;
  explicit SharedEnvironment(Environment of_all);

  Environment variables;
  std::vector<std::string> words;  // NAME=VALUE, in the same order.
};

struct SpawnRequest {
  std::vector<std::string> arguments;  // argv; arguments[0] is the name that the program sees.
  std::string executable;              // Absolute, or relative to working_directory.
  Environment environment;             // Variables of this process only, followed by `shared`.
  std::shared_ptr<const SharedEnvironment> shared;  // `environment` overrides these; may be null.
  std::string working_directory;                    // Absolute.
  int stdin_fd = -1;  // -1 means /dev/null. The caller keeps ownership of all three.
  int stdout_fd = -1;
  int stderr_fd = -1;
  bool own_session = false;  // If false, it gets a new process group in the supervisor's session.
  int cgroup_fd = -1;        // Directory of the cgroup v2 to start in; -1 if none.
  CoreList cores;            // Processors to run on; empty means the supervisor's.
  std::optional<int> memory_node;  // NUMA node of preferred memory; only used with `cores`.
  // If absent, the supervisor's limits, except for the user's limit of core files.
  std::optional<SpawnLimits> limits;
};

struct SpawnFailure {
  std::string step;  // "clone", "setpgid", "chdir", "exec", "stdin"...
  std::string path;  // The path that the step used.
  int error = 0;
};

struct SpawnedProcess {
  pid_t pid = -1;
  int pidfd = -1;  // Owned by the caller; readable when the process has exited.
};

// The process has a separate process group, a clean signal state and mask, and the standard
// descriptors; all other descriptors are closed on exec, and the limit of locked memory is raised
// to the hard limit. Returned when exec has succeeded or failed, so a failure to execute is never
// mistaken for exit code 127. A script without "#!" fails with ENOEXEC and is not run by a shell.
struct SpawnResult {
  SpawnedProcess process;  // pid > 0 on success.
  SpawnFailure failure;    // step is not empty on failure.
  bool ok() const { return process.pid > 0; }
};
SpawnResult spawn(const SpawnRequest& request);

// Starts a process in two halves, so that many processes can be created before the first one has
// executed its program: on several cores their starts overlap.
struct SpawnMemory;
struct PendingSpawn {
  SpawnedProcess process;
  SpawnFailure failure;  // Set if the start has already failed; finish_spawn() returns it.
  // Memory that the child uses; finish_spawn() must be called before it is freed.
  std::shared_ptr<SpawnMemory> memory;
  int report_fd = -1;       // Owned; -1 if the child shares our memory and reports there.
  bool is_awaited = false;  // await_spawn() has returned.
  bool has_failed = false;  // A step failed, and the child has exited.
};
PendingSpawn begin_spawn(const SpawnRequest& request);
// Blocks until the program is executed or an earlier step has failed, possibly forever if a file
// system does not respond. Leaves the child of a failed start for finish_spawn() to reap.
void await_spawn(PendingSpawn& pending);
// Calls await_spawn() if necessary and returns the outcome.
SpawnResult finish_spawn(PendingSpawn pending);

// Looks a name up as execvp() does. A name with '/' is used as it is, relative to
// working_directory. Returns NotFound, or PermissionDenied if only non-executable files were found.
// `errno_value` (may be null) receives ENOENT, EACCES or EISDIR.
Result<std::string> find_executable(const std::string& name, const std::string& search_path,
                                    const std::string& working_directory, int* errno_value);

}  // namespace ivy
