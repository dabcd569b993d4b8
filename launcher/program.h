// What ivyrun and ivyrun-agents do. Apart from their main, so that it is compiled once for both.
#pragma once

#include "launcher/links/warden_copy.h"

namespace ivy {

// Returns the exit code. `warden` is what a copy of this process runs as the warden of its own
// host; null where the program has none.
int run_program(int argc, char** argv, WardenCopy::Main warden);

}  // namespace ivy
