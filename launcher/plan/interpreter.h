// SPDX-License-Identifier: Apache-2.0
// Finds the Python that runs a script. Accesses only the file system of this host. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/os/own_program.h"

namespace ivy {

// Returns candidates in order, as absolute paths. If --python or IVY_PYTHON is given, it is the
// only candidate (a bare name is looked up in the caller's PATH). Otherwise: VIRTUAL_ENV,
// CONDA_PREFIX, then the first python3 and python in the caller's PATH, if they exist here. A
// virtual environment that contains only ivyrun comes last. If there is no candidate, returns the
// bare names: each host searches the same PATH and reports where it looked.
// `own_directory` has the programs of ivyrun.
std::vector<std::string> interpreter_candidates(
    const Options& options, const Environment& caller,
    const std::string& own_directory = program_directory());

// Returns the caller's PATH without the programs of the active environment.
std::string path_without_environment(const Environment& caller);

}  // namespace ivy
