// Who gets a signal before TERM goes to everybody. After a failure: workers on the control socket
// have been told so and get a second to say what they know; the others have nothing to hear it
// from. After Ctrl-C: every worker's process group. Thread: any.
#pragma once

#include <memory>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/workers/worker.h"

namespace ivy {

// CONT and TERM to every worker that has not been told, with all that is below it or in its process
// group.
void terminate_untold(const Containment& containment,
                      const std::vector<std::unique_ptr<Worker>>& workers,
                      const ControlServer& control);

// CONT and INT to every worker's process group, as Ctrl-C on a terminal would. Whoever has left the
// group hears of the stop by the TERM that follows.
void interrupt_groups(const std::vector<std::unique_ptr<Worker>>& workers);

}  // namespace ivy
