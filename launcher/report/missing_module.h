// SPDX-License-Identifier: Apache-2.0
// Advice when a worker's Python does not have a module, or its program not a library that it is
// linked to: it may be missing on one host alone, or another Python on this machine may have it.
// Reads directories, starts nothing; used only after a failure. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns "torch" if the end of a worker's output reports that module torch.utils is missing; empty
// if it reports no missing module. Pure.
std::string missing_module(const std::string& stderr_tail);

// The hosts on which a module or library is missing, and where else it may be found.
struct MissingPlace {
  std::string hosts;  // "node[2-3]"; empty: the job has one host.
  const HostFacts* facts = nullptr;
  const Environment* caller = nullptr;  // The launcher's, if it is the same machine.
  // Directories of this machine that may have the user's own modules: the script's, the working
  // one.
  std::vector<std::string> own_directories;
  // Directories of this machine that may have a virtual environment, .venv.
  std::vector<std::string> project_directories;
  bool has_safe_path = false;  // PYTHONSAFEPATH is set: Python does not look there.
};

// How to get a module into that Python. A command for pip only if the distribution of the module is
// known: the name of a user's own module, or "cv2", may belong to a stranger's distribution. Pure.
std::string install_advice(const std::string& module, const std::string& interpreter);

// A note about a module that the Python of a worker lacks, with what to do; empty for no module, or
// where it is not known which Python that was.
std::string missing_module_text(const std::string& module, const MissingPlace& place);

// A note about the shared library that a worker's last words say is missing; empty: they do not.
std::string missing_library_text(const std::string& stderr_tail, const MissingPlace& place);

}  // namespace ivy
