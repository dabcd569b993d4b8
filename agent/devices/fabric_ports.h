// SPDX-License-Identifier: Apache-2.0
// InfiniBand and RoCE ports, from the kernel's files. Reading may take milliseconds, because the
// kernel queries the adapter's firmware. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/device_health.h"

namespace ivy {

// Returns at most 64 ports. `root`: see device_files.h.
std::vector<PortHealth> read_ports(const std::string& root);
// Returns false if there is certainly no port. Costs one system call.
bool has_ports(const std::string& root);

}  // namespace ivy
