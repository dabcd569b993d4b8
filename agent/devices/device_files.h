// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's files about the accelerators of every vendor, and builds one list from them.
// Thread: any.
//
// A vendor consists of three parts: a row in proto/contract/device_vendor.cc with the variables
// that select a process's devices, a function that reads its files (amd_devices.h), and a row of
// kReaders in device_files.cc. NVIDIA's devices come from several sources, so they are read and
// added separately.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/devices/found_devices.h"
#include "agent/devices/nvidia_devices.h"

namespace ivy {

struct DeviceFiles {
  NvidiaFiles nvidia;
  std::map<Vendor, std::vector<ListedDevice>> others;
};

// `root` is "" for this host, or the directory that replaces "/" in tests. On a host without
// accelerators this costs one listing of the PCI bus. Reads at most 4096 entries of each directory.
DeviceFiles read_device_files(const std::string& root);

// Lists the usable devices of the first vendor that has any: NVIDIA, then the rows of kReaders. A
// job does not mix vendors. Pure.
FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml);

}  // namespace ivy
