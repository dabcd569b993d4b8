// SPDX-License-Identifier: Apache-2.0
// Decides which processes get a signal before TERM goes to everybody. After a failure: workers on
// the control socket were told there and get a second to report what they know; the others cannot
// be told otherwise and get TERM. After Ctrl-C: every worker's process group. Thread: any.
#pragma once

#include <memory>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/workers/worker.h"

namespace ivy {

// Sends CONT and TERM to every worker that was not told on the control socket, and to all processes
// below it or in its process group.
void terminate_uninformed(const Containment& containment,
                          const std::vector<std::unique_ptr<Worker>>& workers,
                          const ControlServer& control);

// Sends CONT and INT to every worker's process group, as Ctrl-C on a terminal would. A process that
// has left the group gets only the TERM that follows.
void interrupt_groups(const std::vector<std::unique_ptr<Worker>>& workers);

}  // namespace ivy
