// SPDX-License-Identifier: Apache-2.0
// `ivy-agent serve`: puts the parts together and runs the loop. Thread: main's, which becomes the
// loop's.
#pragma once

#include "agent/daemon/options.h"

namespace ivy {

// Returns the exit code: 0 after SIGTERM or SIGINT; kExitUsage when it rejects its arguments; 1
// when it could not start.
int run_serve(const ServeCommand& command, const Environment& environment);

}  // namespace ivy
