// SPDX-License-Identifier: Apache-2.0
// Containment in a separate cgroup v2 for the job, below the cgroup in which this process was
// started. A process started there cannot leave without permission to write to another cgroup, and
// one write to cgroup.kill kills all of them. Thread: the supervisor's (or the warden's) only
// thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "agent/node/spawn/containment.h"

namespace ivy {

// Creates or finds the job's cgroup and starts a trial process in it. Permissions, controllers,
// thread modes and system call filters must all allow that, so only a trial shows it. On an error,
// which names the step that failed, the caller uses the process tree.
Result<std::unique_ptr<Containment>> make_cgroup(const ContainmentRequest& request);

// Extracts the directory from the text of a cgroup's describe(); empty if it describes something
// else.
std::string described_cgroup(std::string_view description);

}  // namespace ivy
