// ivyrun is two files of the same sources: `ivyrun`, linked without gRPC, and `ivyrun-agents`
// beside it, linked with it. Users type only the first; where a host may be reached by an agent, it
// becomes the second. Thread: the main one, before there is a loop.
#pragma once

#include <string>
#include <vector>

#include "launcher/hosts.h"
#include "launcher/options.h"
#include "proto/env.h"
#include "proto/status.h"

namespace ivy {

// Can an agent be the carrier of any of these hosts? carrier.cc's rule, as far as it can be told
// without reading certificates. Reads agent.toml. An agent.toml that is wrong is none: both
// programs say what is wrong with it.
bool may_use_agents(const Options& options, const std::vector<Host>& hosts,
                    const Environment& environment);

// Where the second file belongs.
std::string agents_program_path();

// Becomes ivyrun-agents with these arguments, argv[0] too; descriptors and environment stay as they
// are. Returns only when that is impossible: the file is missing, cannot be run, or is this very
// program, which would go on for ever.
Error become_agents_program(char* const* argv);

// The process list says ivyrun, whichever file it is.
void take_the_name_of_ivyrun();

}  // namespace ivy
