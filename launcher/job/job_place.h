// SPDX-License-Identifier: Apache-2.0
// The launcher's own 0700 directory of a job on this host, where ivyctl finds it. It lies beside
// those of supervisors (JOBID-HOST, agent/node/README.md) and is named JOBID alone, so neither
// side's sweep of dead directories touches the other's. Thread: any.
//
//   /tmp/ivyrun-UID/JOBID    locked (flock) while the launcher lives
//     launcher.sock          the job socket
//     record                 what a new launcher needs, for a job that outlives this one
#pragma once

#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct JobPlace {
  std::string path;
  std::string job_id;
  int lock_fd = -1;  // Held by the launcher that made the directory.
  std::string socket() const { return path + "/launcher.sock"; }
  std::string record() const { return path + "/record"; }
};

// Makes the directory and locks it; AlreadyExists when another launcher of this job lives. Removes
// directories of ours whose launcher is dead and left no record, or one that expired over a day ago
// (a clock that is put forward must not cost a job that waits for a new launcher).
Result<JobPlace> make_job_place(const std::string& job_id);
// Makes the directory again if something else has removed it, such as a cleaner of /tmp. True if
// the socket has to be made again.
bool restore_job_place(JobPlace& place);
// Removes the directory with its contents, and releases the lock.
void remove_job_place(JobPlace& place);

struct FoundJob {
  JobPlace place;
  bool is_alive = false;    // Its launcher is still there.
  bool has_record = false;  // A new launcher can take it over: its hosts may still wait for one.
};
// Jobs of this user on this host, by id. Removes directories as above that are neither alive nor
// recorded.
std::vector<FoundJob> find_job_places();

}  // namespace ivy
