// SPDX-License-Identifier: Apache-2.0
// Starts another launcher for a job whose launcher has exited, for the verbs that need one.
// Blocking. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "launcher/ctl/ctl_connection.h"

namespace ivy {

// Returns the ivyrun of the same installation as this ivyctl.
std::string ivyrun_path();

// Ensures that the job has a running launcher, its own or a new one, and returns std::nullopt.
// Returns the new launcher's exit code if it exited: the job has ended, or could not be taken over.
// Prints messages about its steps.
Result<std::optional<int>> ensure_launcher(const FoundJob& job);

// Waits at most a second for a launcher that was just killed: it holds its lock for a moment
// longer but does not answer.
void await_killed_launcher(const std::string& job_id);

}  // namespace ivy
