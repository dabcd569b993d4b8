// SPDX-License-Identifier: Apache-2.0
// Advice for a worker whose Python lacks a module, or whose program lacks a shared library: it may
// be missing on only one host, or another Python on this machine may have it. Reads directories but
// runs nothing; used only after a failure. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns "torch" if the end of a worker's output reports that the module torch is missing; empty
// if it reports no missing module, or only a submodule of a package. Pure.
std::string missing_module(const std::string& stderr_tail);

// The hosts on which a module or library is missing, and where else it may be found.
struct ModuleSearch {
  std::string hosts;  // "node[2-3]"; empty if the job has one host.
  const HostFacts* facts = nullptr;
  const Environment* caller = nullptr;  // The launcher's, if it is the same machine.
  // The working directory on this machine, if the program is a script in another directory: Python
  // searches only that one. Empty otherwise.
  std::string unsearched_directory;
  // Directories of this machine that Python searches for the user's own modules.
  std::vector<std::string> own_directories;
  // Directories of this machine that may contain a virtual environment, .venv.
  std::vector<std::string> project_directories;
  bool has_safe_path = false;  // PYTHONSAFEPATH: Python does not search the script's directory.
};

// Returns advice for installing a module into that Python. Contains a pip command only if the
// module's distribution is known: the name of a user's own module, or "cv2", may be the name of an
// unrelated distribution. Pure.
std::string install_advice(const std::string& module, const std::string& interpreter);

// Returns a note with advice about a module that a worker's Python lacks; empty if there is no
// module, or if it is not known which Python that was.
std::string missing_module_text(const std::string& module, const ModuleSearch& search);

// Returns a note about the shared library that is missing according to a worker's last output;
// empty if there is none.
std::string missing_library_text(const std::string& stderr_tail, const ModuleSearch& search);

}  // namespace ivy
