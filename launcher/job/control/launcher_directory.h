// SPDX-License-Identifier: Apache-2.0
// The launcher's private directory (0700), named JOBID; ivyctl finds the job through it.
// Supervisors' directories are siblings named JOBID-HOST (agent/node/spawn/README.md); neither side
// removes the other's stale ones. Thread: any.
//
//   /tmp/ivyrun-UID/JOBID    locked (flock) as long as the launcher runs
//     launcher.sock          the job's socket
//     record                 the data that a new launcher needs, if the job outlives this one
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct LauncherDirectory {
  std::string path;
  std::string job_id;
  std::string socket() const { return path + "/launcher.sock"; }
  std::string record() const { return path + "/record"; }
};

// The directory of the running launcher, which holds its lock.
struct LockedLauncherDirectory : LauncherDirectory {
  Descriptor lock{};
};

// Makes the directory and locks it. Fails with AlreadyExists if another launcher of this job is
// running.
Result<LockedLauncherDirectory> make_launcher_directory(const std::string& job_id);
// Recreates the directory if another program, such as a cleaner of /tmp, has removed it. Returns
// true if the caller must recreate the socket.
bool restore_launcher_directory(LockedLauncherDirectory& directory);
// Removes the directory with its contents, and releases the lock. Does nothing without the lock.
void remove_launcher_directory(LockedLauncherDirectory& directory);

// Removes this user's stale directories: those whose launcher has exited and left either no record
// or a record whose leases expired more than a day ago. The day's grace protects waiting jobs if
// the clock jumps forward.
void remove_stale_launcher_directories();

struct FoundJob {
  LauncherDirectory directory;
  bool is_alive = false;    // Its launcher is running.
  bool has_record = false;  // A new launcher can take it over: its hosts may still wait for one.
};
// Returns the jobs of this user on this host that are alive or have a record, by id.
std::vector<FoundJob> find_launcher_directories();

}  // namespace ivy
