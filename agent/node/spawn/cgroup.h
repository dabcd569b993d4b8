// SPDX-License-Identifier: Apache-2.0
// Containment in a cgroup v2 of the job's own, below the cgroup that this process was started in.
// No process started in it can leave without the right to write to another cgroup, and one write to
// cgroup.kill ends it whole. Thread: the supervisor's (or the warden's) only thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "agent/node/spawn/containment.h"

namespace ivy {

// Makes or finds the job's cgroup and tests that a process can be started in it: rights,
// controllers, thread modes and system call filters together allow it, so only a trial tells. The
// error names the step that was refused; the caller then uses the process tree.
Result<std::unique_ptr<Containment>> make_cgroup(const ContainmentRequest& request);

// The directory in what a cgroup's describe() has returned; empty when that was no cgroup.
std::string described_cgroup(std::string_view description);

}  // namespace ivy
