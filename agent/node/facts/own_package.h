// SPDX-License-Identifier: Apache-2.0
// Locates this build's Python package, relative to ivy-node, for the workers. Thread: any.
#pragma once

#include <string>

#include "proto/contract/env.h"

namespace ivy {

// Returns the entry to append to PYTHONPATH, for an ivy-node in this directory:
// DIR/../lib/ivyrun/python (a build tree or an installation) or DIR/ivycomm.zip (a bundle that was
// sent here). Empty if neither exists.
std::string own_package(const std::string& program_directory);

// Returns the folder of this build's sitecustomize.py (agent/node/workers/python_hook.h) for an
// ivy-node in this directory: DIR/../lib/ivyrun/hook, or DIR itself in a bundle. Empty if neither
// has the file.
std::string own_hook(const std::string& program_directory);

// Returns this build's NCCL profiler plug-in (comm/nccl_profiler) for an ivy-node in this
// directory: DIR/../lib/ivyrun/libivy_nccl_profiler.so, or DIR/libivy_nccl_profiler.so in a bundle.
// Empty if neither exists.
std::string own_nccl_profiler(const std::string& program_directory);

// Appends `package` to PYTHONPATH, after the user's entries. Does nothing if `package` is empty or
// contains a colon, which PYTHONPATH cannot express.
void append_package(Environment& environment, const std::string& package);

}  // namespace ivy
