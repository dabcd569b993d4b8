// SPDX-License-Identifier: Apache-2.0
// Vendors of accelerators, one row each: the name in a host's facts, and the variables that select
// the devices a process may use. Nothing else lists these variables. agent/devices/device_files.h
// has the vendors' device files and other needs. Pure; thread: any.
#pragma once

#include <span>
#include <string_view>

namespace ivy {

struct DeviceVendor {
  std::string_view name;  // As in HostFacts.accelerator_source, such as "nvidia".
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

// Returns the row with this name, or the first row if no row has it.
const DeviceVendor& device_vendor(std::string_view name);

// Returns whether this variable is a mask of any vendor.
bool is_device_mask(std::string_view variable);
// Returns whether the variable is a mask, or selects devices of one host in another way.
bool selects_devices(std::string_view variable);

}  // namespace ivy
