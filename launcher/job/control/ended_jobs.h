// SPDX-License-Identifier: Apache-2.0
// Remembers for a day how a job ended, for users who ask later: one small file next to the
// directories of running jobs. Thread: any.
//
//   /tmp/ivyrun-UID/JOBID.ended   "exit 143\nrank 3 was killed...\n", then the description's bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/control/launcher_directory.h"

namespace ivy {

struct EndedJob {
  std::string job_id;
  int exit_code = 0;
  std::string cause;  // One line; empty: every rank exited with 0.
  // A serialized ctl::JobDescription of the job's last moment; empty: unknown.
  std::string description;
  std::int64_t ended_unix_ms = 0;
};

// Writes the file, and removes files that are older than a day. Failures are ignored: on a full
// disk the end is not remembered.
void record_end(const LauncherDirectory& directory, const EndedJob& end);
// Returns all remembered ends, the newest first.
std::vector<EndedJob> find_ended_jobs();
// Finds a remembered job by the beginning of its id, or by its --name. Returns nullopt if no job
// matches, if several ids do, or if the prefix is empty.
std::optional<EndedJob> find_ended_job(const std::string& prefix);

// Describes the end: "succeeded (exit code 0)".
std::string how_it_ended(const EndedJob& end);

}  // namespace ivy
