// SPDX-License-Identifier: Apache-2.0
// The processes that compute on a device, as reported by NVML. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/devices/nvml_functions.h"

namespace ivy::nvml {

// `bytes` is 0 if unknown.
struct DeviceUser {
  int pid = 0;
  std::uint64_t bytes = 0;
};

// Returns at most 4096 processes; none if this process lacks the rights to see other users'
// processes.
std::vector<DeviceUser> device_users(const Library& library, Device device);

// Returns the memory in use on the device by any process; 0 if unknown.
std::uint64_t memory_in_use(const Library& library, Device device);

// Returns false also if NVML does not say.
bool is_in_mig_mode(const Library& library, Device device);
// Returns the instances of a GPU in MIG mode, at most 16.
std::vector<Device> slices_of(const Library& library, Device device);

}  // namespace ivy::nvml
