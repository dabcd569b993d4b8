// Vendors of accelerators, one row each: the name in a host's facts, and the variables that tell a
// process which of the vendor's devices it may use. Nothing else lists these variables.
// agent/devices/device_files.h lists what else a vendor needs. Pure; thread: any.
#pragma once

#include <span>
#include <string_view>

namespace ivy {

struct DeviceVendor {
  std::string_view name;  // As HostFacts.accelerator_source has it, such as "nvidia".
  // The mask that a worker gets. Numbers in it count what the lower mask leaves.
  std::string_view mask;
  std::string_view lower_mask = {};  // Empty where the vendor has none.
  // Another vendor's mask, which this one's libraries read where `mask` is not set; may be empty.
  std::string_view borrowed_mask = {};
  // The order in which numbers count devices, for workers whose user has not chosen one.
  std::string_view order_variable = {};
  std::string_view order = {};
  // A variable of other software that selects devices, and is true of one host alone as a mask is:
  // of a container runtime, of OpenCL. May be empty.
  std::string_view other_mask = {};
};

std::span<const DeviceVendor> device_vendors();

// The row with this name; the first one for a name that no row has.
const DeviceVendor& device_vendor(std::string_view name);

// True if this variable is a mask of any vendor.
bool is_device_mask(std::string_view variable);
// True if it is one, or selects devices of one host in another way.
bool selects_devices(std::string_view variable);

}  // namespace ivy
