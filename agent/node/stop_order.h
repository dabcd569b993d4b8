// Who gets TERM first when another worker has failed: workers on the control socket have been told
// so and get a second to say what they know; the others have nothing to hear it from. Thread: any.
#pragma once

#include <memory>
#include <vector>

#include "agent/node/containment.h"
#include "agent/node/control_server.h"
#include "agent/node/worker.h"

namespace ivy {

// CONT and TERM to every worker that has not been told, with all that is below it or in its process
// group.
void terminate_untold(const Containment& containment,
                      const std::vector<std::unique_ptr<Worker>>& workers,
                      const ControlServer& control);

}  // namespace ivy
