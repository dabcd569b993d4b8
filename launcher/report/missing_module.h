// Advice when a worker's Python does not have a module: another Python on this machine may have it.
// Reads directories, starts nothing; used only after a failure. Thread: any.
#pragma once

#include <string>

#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// "torch" where the end of what a worker has written says that there is no module torch.utils;
// empty: it says nothing of that kind. Pure.
std::string missing_module(const std::string& stderr_tail);

// A note about a module that the Python of a worker lacks, with what to do; empty for no module, or
// where it is not known which Python that was.
std::string missing_module_text(const std::string& module, const HostFacts& facts,
                                const Environment& caller);

}  // namespace ivy
