// SPDX-License-Identifier: Apache-2.0
// Chooses how this host holds a job together: a cgroup where that is possible, else the process
// tree.
#pragma once

#include <memory>

#include "agent/node/spawn/containment.h"

namespace ivy {

// Best kind that works here: own cgroup v2 child (found by /proc/self/mountinfo and
// /proc/self/cgroup, never by a fixed path), else the process tree. Never fails.
std::unique_ptr<Containment> make_containment(const ContainmentRequest& request);

}  // namespace ivy
