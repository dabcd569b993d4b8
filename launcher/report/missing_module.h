// Advice when a worker's Python does not have a module, or its program not a library that it is
// linked to: it may be missing on one host alone, or another Python on this machine may have it.
// Reads directories, starts nothing; used only after a failure. Thread: any.
#pragma once

#include <string>

#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// "torch" where the end of what a worker has written says that there is no module torch.utils;
// empty: it says nothing of that kind. Pure.
std::string missing_module(const std::string& stderr_tail);

// The host where something is missing.
struct MissingPlace {
  std::string host;  // Empty: the job has one host.
  const HostFacts* facts = nullptr;
  const Environment* caller = nullptr;  // The launcher's, where it is the same machine.
};

// A note about a module that the Python of a worker lacks, with what to do; empty for no module, or
// where it is not known which Python that was.
std::string missing_module_text(const std::string& module, const MissingPlace& place);

// A note about the shared library that a worker's last words say is missing; empty: they do not.
std::string missing_library_text(const std::string& stderr_tail, const MissingPlace& place);

}  // namespace ivy
