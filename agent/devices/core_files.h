// SPDX-License-Identifier: Apache-2.0
// This host's processors, and the ones that this process may use, from the kernel's files. Thread:
// any.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"
#include "proto/contract/core_list.h"

namespace ivy {

// Returns the processors that this process may run on: its affinity mask within its cgroup. With a
// test root (device_files.h), reads "Cpus_allowed_list" of proc/self/status below that root.
CoreList allowed_cores(const std::string& root);

// Reads from /sys/devices/system the cores that contain processors in `allowed`, with only those
// processors. Grouped by core, because the hardware threads of one core belong together.
std::vector<Core> read_cores(const std::string& root, const CoreList& allowed);

}  // namespace ivy
