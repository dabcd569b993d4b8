// SPDX-License-Identifier: Apache-2.0
// AMD GPUs as reported by the kernel driver (kfd), and whether each may be used. Thread: any.
//
//   /sys/class/kfd/kfd/topology/nodes/*            nodes with simd_count > 0
//   /dev/kfd, /dev/dri/renderD<minor>              permission to use them
#pragma once

#include <string>
#include <vector>

#include "agent/devices/found_devices.h"

namespace ivy {

// Reads files only; returns the devices in the order of the topology, which is ROCm's. Their UUIDs
// have ROCm's form: "GPU-1234567890abcdef".
std::vector<ListedDevice> read_amd_files(const std::string& root);

}  // namespace ivy
