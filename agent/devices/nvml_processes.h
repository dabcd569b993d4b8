// SPDX-License-Identifier: Apache-2.0
// The processes that compute on a device, as reported by NVML. Thread: any, one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/devices/nvml_functions.h"

namespace ivy::nvml {

// Bytes that are not known are 0.
struct DeviceUser {
  int pid = 0;
  std::uint64_t bytes = 0;
};

// Without rights for others' processes the list is empty. It has at most 4096 entries.
std::vector<DeviceUser> device_users(const Library& library, Device device);

// The memory in use on the device, whoever uses it; 0: unknown.
std::uint64_t memory_in_use(const Library& library, Device device);

// The parts of a GPU in MIG mode, at most 16; nothing: it is not in this mode.
bool is_in_mig_mode(const Library& library, Device device);
std::vector<Device> slices_of(const Library& library, Device device);

}  // namespace ivy::nvml
