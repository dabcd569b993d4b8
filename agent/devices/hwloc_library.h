// SPDX-License-Identifier: Apache-2.0
// Asks hwloc for the layout of this host's cores. hwloc is found at run time, so that a host
// without it loses only this answer, which files give too (core_files.h). Thread: any, one at a
// time.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"

namespace ivy {

// Every core with its hardware threads; empty where libhwloc.so.15 is absent or fails. root: as in
// device_files.h.
std::vector<Core> ask_hwloc(const std::string& root);

}  // namespace ivy
