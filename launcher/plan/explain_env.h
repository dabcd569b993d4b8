// --explain-env: what a worker finds in its environment, who reads it, and why it has that value.
// Pure; thread: any.
#pragma once

#include <string>

#include "launcher/plan/worker_environment.h"

namespace ivy {

// The variables of the first host's first worker with reader and reason, then what differs from
// rank to rank (first and last of each host), then what workers do not get of the caller's. What
// the supervisor alone knows (paths in the job's directory) is named without a value. Fails as
// make_host_plan does.
Result<std::string> explain_environment(const EnvironmentInputs& inputs);

}  // namespace ivy
