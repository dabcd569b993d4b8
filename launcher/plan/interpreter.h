// SPDX-License-Identifier: Apache-2.0
// Finds the Python that runs a script. Touches only the file system of this host. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "proto/contract/env.h"

namespace ivy {

// Candidates in order, absolute paths. --python or IVY_PYTHON is the only candidate when given (a
// bare name is looked up in the caller's PATH); else VIRTUAL_ENV, CONDA_PREFIX, then the first
// python3 and python of the caller's PATH, as far as they exist here. A virtual environment with
// nothing but ivyrun in it comes last. If there is no candidate, the bare names: each host looks in
// the same PATH, and reports where it looked.
std::vector<std::string> interpreter_candidates(const Options& options, const Environment& caller);

}  // namespace ivy
