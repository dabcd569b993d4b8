// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's files about the accelerators of every vendor, and builds one list from them.
// Thread: any.
//
// A vendor consists of four parts: a row in proto/contract/device_vendor.cc with the variables that
// select a process's devices, a pair of functions that read its files and add usable devices
// (amd_devices.h), its member of DeviceFiles, and its calls in device_files.cc.
#pragma once

#include <string>
#include <vector>

#include "agent/devices/amd_devices.h"
#include "agent/devices/found_devices.h"
#include "agent/devices/intel_devices.h"
#include "agent/devices/nvidia_devices.h"

namespace ivy {

struct DeviceFiles {
  NvidiaFiles nvidia;
  std::vector<AmdDevice> amd;
  std::vector<BusDevice> amd_bus;
  std::vector<IntelDevice> intel;
  std::vector<BusDevice> intel_bus;
};

// `root` is "" for this host, or the directory that replaces "/" in tests. On a host without
// accelerators this costs one listing of the PCI bus. Reads at most 4096 entries of each directory.
DeviceFiles read_device_files(const std::string& root);

// Lists NVIDIA's devices; if none can be used, AMD's; if none of those either, Intel's. A job does
// not mix vendors. Pure.
FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml);

}  // namespace ivy
