// A look at a command line before it is read. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/env.h"

namespace ivy {

// True if this is probably a job on this host alone: the flags say nothing but how many workers
// there are, and no variable of the environment can name hosts. Only a guess, since configuration
// files are not looked at.
bool is_probably_local(const std::vector<std::string>& arguments, const Environment& caller);

}  // namespace ivy
