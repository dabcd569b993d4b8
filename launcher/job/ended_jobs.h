// SPDX-License-Identifier: Apache-2.0
// Remembers how a job in the background ended, for users who ask later: one small file beside the
// places of jobs, for a day. Thread: any.
//
//   /tmp/ivyrun-UID/JOBID.ended   "exit 143\nrank 3 was killed...\n", then the description's bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_place.h"

namespace ivy {

struct EndedJob {
  std::string job_id;
  int exit_code = 0;
  std::string cause;        // One line; empty: every rank ended well.
  std::string description;  // A ctl::JobDescription of its last moment; empty: not known.
  std::int64_t ended_unix_ms = 0;
};

// At best: a full disk forgets an end. Removes those that are older than a day.
void remember_end(const JobPlace& place, const EndedJob& end);
// All that are remembered, the newest first.
std::vector<EndedJob> find_ended_jobs();
// By the beginning of its id, or by its --name. Nothing when no remembered job is called so, or
// several ids begin so, or the prefix is empty.
std::optional<EndedJob> find_ended_job(const std::string& prefix);

// "succeeded (exit code 0)"
std::string how_it_ended(const EndedJob& end);

}  // namespace ivy
