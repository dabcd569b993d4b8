// SPDX-License-Identifier: Apache-2.0
// The variables of a worker. explain_env.h has the reason for each. Pure; thread: any.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/environment_inputs.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns the plan of one host in the form in which it is sent: arguments, directory, variables of
// the host and of each worker. The supervisor on the launcher's own host inherits the caller's
// environment, so only differences are sent there; other hosts are also sent the allow-listed
// variables.
Result<HostPlan> make_host_plan(const EnvironmentInputs& inputs, const PlannedHost& host);

// Returns host name and boot id of planned hosts that have both in common, as containers on one
// machine may. NCCL would expect them to share memory, which they do not.
std::set<std::string> shared_machines(const JobPlan& plan, const std::vector<HostAnswer>& answers);

// Returns the variables that change with each generation, for StartAgain.
Environment generation_variables(std::uint32_t generation);

// Returns one line with the names (not the values) of variables that the caller exported in this
// shell and that other hosts do not get; may be empty. Leaves out variables that every login has,
// by a list of their names.
std::string not_passed_line(const EnvironmentInputs& inputs);

// Returns one line about OpenMP variables that would pin the threads of all ranks of a host to the
// same cores; may be empty.
std::string pinned_threads_line(const EnvironmentInputs& inputs);

}  // namespace ivy
