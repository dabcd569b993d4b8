// SPDX-License-Identifier: Apache-2.0
// Reads the layout of this host's cores from hwloc: the hardware threads, NUMA node, package and L3
// cache of each core. Called by ivy-probe. hwloc is loaded at run time, because it is optional:
// without it, the layout is read from the kernel's files (core_files.h). Not thread-safe, because
// it changes environment variables.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"

namespace ivy {

// Returns all cores, or an empty list if libhwloc.so.15 is missing or fails. `root` is "" for this
// host, or the directory that replaces "/" in tests.
std::vector<Core> query_hwloc(const std::string& root);

}  // namespace ivy
