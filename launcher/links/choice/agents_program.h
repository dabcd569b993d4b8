// ivyrun is two files of the same sources: `ivyrun`, linked without gRPC, and `ivyrun-agents`
// beside it, linked with it. Users type only the first; where a host may be reached by an agent, it
// becomes the second. Thread: the main one, before there is a loop.
#pragma once

#include <string>

#include "launcher/options/hosts.h"
#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// The path where the second program file belongs.
std::string agents_program_path();

// Becomes ivyrun-agents with these arguments, argv[0] too; descriptors and environment stay as they
// are. Returns only when that is impossible: the file is missing, cannot be run, or is this very
// program, which would go on for ever.
Error become_agents_program(char* const* argv);

// The process list says ivyrun, whichever file it is.
void take_the_name_of_ivyrun();

}  // namespace ivy
