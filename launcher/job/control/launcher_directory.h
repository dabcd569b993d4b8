// SPDX-License-Identifier: Apache-2.0
// The launcher's directory (0700) on this host, where ivyctl finds the job.
// It is named JOBID, and the directories of supervisors next to it JOBID-HOST
// (agent/node/spawn/README.md), so neither side removes stale directories of the other. Thread:
// any.
//
//   /tmp/ivyrun-UID/JOBID    locked (flock) as long as the launcher runs
//     launcher.sock          the job's socket
//     record                 the data that a new launcher needs, if the job outlives this one
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct LauncherDirectory {
  std::string path;
  std::string job_id;
  int lock_fd = -1;  // Held by the launcher that made the directory; else -1.
  std::string socket() const { return path + "/launcher.sock"; }
  std::string record() const { return path + "/record"; }
};

// Makes the directory and locks it. AlreadyExists: another launcher of this job is running. Removes
// stale directories of this user: their launcher has exited and left no record, or one whose leases
// ended more than a day ago. The day protects jobs that wait for a new launcher while the clock is
// put forward.
Result<LauncherDirectory> make_launcher_directory(const std::string& job_id);
// Makes the directory again if another program, such as a cleaner of /tmp, has removed it. Returns
// true if the directory exists and lacks its socket, which the caller then makes again.
bool restore_launcher_directory(LauncherDirectory& directory);
// Removes the directory with its contents, and releases the lock.
void remove_launcher_directory(LauncherDirectory& directory);

struct FoundJob {
  LauncherDirectory directory;
  bool is_alive = false;    // Its launcher is running.
  bool has_record = false;  // A new launcher can take it over: its hosts may still wait for one.
};
// Returns the jobs of this user on this host that are alive or have a record, by id.
std::vector<FoundJob> find_launcher_directories();

}  // namespace ivy
