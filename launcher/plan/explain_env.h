// SPDX-License-Identifier: Apache-2.0
// --explain-env: shows a worker's variables, the software that reads each, and the reason for its
// value. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>

#include "launcher/plan/worker_environment.h"

namespace ivy {

// Returns the variables of the first host's first worker with reader and reason, then the variables
// that differ between ranks (first and last of each host), then the caller's variables that workers
// do not get. Omits values that only the supervisor knows (paths in the job's directory). Fails
// like make_host_plan().
Result<std::string> explain_environment(const EnvironmentInputs& inputs);

// Returns the reason for the value of a variable that ivyrun sets; empty if none is listed, as for
// the user's own variables.
std::string_view reason_for_variable(const std::string& name);

}  // namespace ivy
