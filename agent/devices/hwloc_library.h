// SPDX-License-Identifier: Apache-2.0
// Queries hwloc for the layout of this host's cores. hwloc is loaded at run time, because without
// it the kernel's files still give the layout (core_files.h). Thread: any, one at a time.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"

namespace ivy {

// Returns every core with its hardware threads; empty if libhwloc.so.15 is missing or fails. root:
// see device_files.h.
std::vector<Core> ask_hwloc(const std::string& root);

}  // namespace ivy
