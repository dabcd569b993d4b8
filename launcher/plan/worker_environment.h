// SPDX-License-Identifier: Apache-2.0
// One worker's variables, each with its reason. Pure; thread: any.
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

// The plan of one host, ready to be sent: arguments, directory, variables of the host and of each
// worker. On the launcher's own host the supervisor inherits the caller's environment, so only
// differences travel; on others the allow-listed variables travel too.
Result<HostPlan> make_host_plan(const EnvironmentInputs& inputs, const PlannedHost& host);

// Host name and boot id of planned hosts that share both, as containers of one machine may: NCCL
// would look for memory that they do not share.
std::set<std::string> shared_machines(const JobPlan& plan, const std::vector<HostAnswer>& answers);

// The variables that change from one generation to the next, for StartAgain.
Environment generation_variables(std::uint32_t generation);

// One line that names (not values) what the caller exported in this shell and other hosts do not
// get; empty when there is nothing to say. login_environment: what a fresh login of this user has,
// approximated by a list of names that every login has.
std::string not_passed_line(const EnvironmentInputs& inputs);

// One line about variables of OpenMP that pin the threads of every rank of a host to the same
// cores; empty when there is nothing to say.
std::string pinned_threads_line(const EnvironmentInputs& inputs);

}  // namespace ivy
