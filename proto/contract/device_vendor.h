// SPDX-License-Identifier: Apache-2.0
// Vendors of accelerators, one row each: the name in a host's facts, the variables that select the
// devices a process may use, and in what else their devices differ. Nothing else lists these
// variables or compares vendors. agent/devices/device_files.h reads the vendors' device files.
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ivy {

enum class Vendor : std::uint8_t { kNvidia, kAmd, kIntel };

struct DeviceVendor {
  Vendor id;
  std::string_view name;    // As in HostFacts.accelerator_source, such as "nvidia".
  bool is_watched = false;  // `ivy-probe watch` reports the devices' faults and memory (by NVML).
  bool is_xpu = false;      // torch calls the devices "xpu".
  // If this variable is COMPOSITE, a process sees each GPU as one device instead of one device for
  // each tile, and "1.0" in a mask is the first tile of device 1. Empty if GPUs have no tiles.
  std::string_view tile_variable = {};
  // The mask set for a worker. Its numbers index the devices that the lower mask leaves visible.
  std::string_view mask;
  std::string_view lower_mask = {};  // Empty if the vendor has none.
  // Another vendor's mask that this vendor's libraries read if `mask` is not set; may be empty.
  std::string_view borrowed_mask = {};
  // Sets the order in which devices are numbered, for workers whose user has not chosen one.
  std::string_view order_variable = {};
  std::string_view order = {};
  // A variable of other software (a container runtime, OpenCL) that selects devices and, like a
  // mask, applies to one host only. May be empty.
  std::string_view other_mask = {};
  std::string_view tool = {};  // The vendor's program that shows the state of devices.
};

std::span<const DeviceVendor> device_vendors();
const DeviceVendor& device_vendor(Vendor vendor);

// Returns the row with this name, or null if there is none.
const DeviceVendor* find_device_vendor(std::string_view name);
// Returns the row with this name, or NVIDIA's if there is none: for accelerators whose host
// reported no vendor, the launcher sets CUDA's variables.
const DeviceVendor& device_vendor(std::string_view name);

// Returns whether this variable is a mask of any vendor.
bool is_device_mask(std::string_view variable);
// Returns whether the variable is a mask, or selects devices of one host in another way.
bool selects_devices(std::string_view variable);

}  // namespace ivy
