// SPDX-License-Identifier: Apache-2.0
// --explain-env: what a worker finds in its environment, who reads it, and why it has that value.
// Pure; thread: any.
#pragma once

#include <string>

#include "launcher/plan/worker_environment.h"

namespace ivy {

// The variables of the first host's first worker with reader and reason, then variables that
// differ between ranks (first and last of each host), then the caller's variables that workers do
// not get. Values that only the supervisor knows (paths in the job's directory) are omitted. Fails
// as make_host_plan does.
Result<std::string> explain_environment(const EnvironmentInputs& inputs);

}  // namespace ivy
