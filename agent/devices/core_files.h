// SPDX-License-Identifier: Apache-2.0
// The processors of this host, and those that this process may use, from the kernel's files.
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"
#include "proto/contract/core_list.h"

namespace ivy {

// The processors that this process may run on: its affinity mask, within its control group. With a
// root for tests (device_files.h): "Cpus_allowed_list" in proc/self/status there.
CoreList allowed_cores(const std::string& root);

// The cores that `allowed` leaves, by number, from /sys/devices/system. Core by core rather than
// thread by thread: threads of one core belong together.
std::vector<Core> read_cores(const std::string& root, const CoreList& allowed);

}  // namespace ivy
