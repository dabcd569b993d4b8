// SPDX-License-Identifier: Apache-2.0
// Starts another launcher for a job whose launcher has exited, for the verbs that need one.
// Blocking. Thread: any, one at a time.
#pragma once

#include <optional>
#include <string>

#include "launcher/ctl/ctl_connection.h"

namespace ivy {

// Returns the ivyrun of the same installation as this ivyctl.
std::string ivyrun_path();

// Ensures that the job has a running launcher, its own or a new one. Returns std::nullopt then, or
// the job's exit code if the job ended before. Prints what it does.
Result<std::optional<int>> have_launcher(const FoundJob& job);

// Waits for a launcher that was just killed, which holds its lock for a moment longer but does not
// answer.
void await_end_of_dying_launcher(const std::string& job_id);

}  // namespace ivy
