// SPDX-License-Identifier: Apache-2.0
// Chooses the containment of a job on this host: a cgroup if possible, otherwise the process tree.
#pragma once

#include <memory>

#include "agent/node/spawn/containment.h"

namespace ivy {

// Returns the best containment that works here: a child of this process's own cgroup v2, which is
// located through /proc/self/mountinfo and /proc/self/cgroup rather than at a fixed path, or else
// the process tree. Never fails.
std::unique_ptr<Containment> make_containment(const ContainmentRequest& request);

}  // namespace ivy
