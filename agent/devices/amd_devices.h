// SPDX-License-Identifier: Apache-2.0
// AMD GPUs as reported by the kernel driver (kfd), and whether each may be used. Thread: any.
//
//   /sys/class/kfd/kfd/topology/nodes/*            nodes with simd_count > 0
//   /dev/kfd, /dev/dri/renderD<minor>              permission to use them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/devices/found_devices.h"
#include "agent/devices/small_files.h"

namespace ivy {

// One node of the kfd topology with compute units.
struct AmdDevice {
  std::string bdf;
  std::string uuid;  // "GPU-1234567890abcdef", ROCm's form; empty if the driver has none.
  NodeState node = NodeState::kAbsent;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

// Reads files only; returns the devices in the order of the topology, which is ROCm's.
std::vector<AmdDevice> read_amd_files(const std::string& root);

// Adds the usable devices to `found`. `bus` lists the same devices as found on the PCI bus. Pure.
void add_amd(const std::vector<AmdDevice>& devices, const std::vector<BusDevice>& bus,
             FoundDevices& found);

}  // namespace ivy
