// SPDX-License-Identifier: Apache-2.0
// Ports of InfiniBand and RoCE, by the kernel's files. Reading them may take milliseconds: the
// adapter's firmware is asked. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/device_health.h"

namespace ivy {

// At most 64 ports. `root` as in device_files.h.
std::vector<PortHealth> read_ports(const std::string& root);
// True if there may be any; costs one look at a directory.
bool has_ports(const std::string& root);

}  // namespace ivy
