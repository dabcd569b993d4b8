// SPDX-License-Identifier: Apache-2.0
// Applies CUDA_VISIBLE_DEVICES and similar masks: which devices of a host remain visible, and in
// which order. Pure; thread: any. Source of the rules: CUDA C++ Programming Guide, "CUDA
// Environment Variables"; ROCm documentation, "GPU isolation techniques".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/found_devices.h"

namespace ivy {

// A device that remains visible.
struct VisibleDevice {
  // Index in the list. Absent if the mask names the device by a UUID and no available source knows
  // UUIDs; the device is then assumed to exist.
  std::optional<std::size_t> device;
  std::string entry;  // The entry that names it in a worker's own mask.
};

struct MaskedDevices {
  std::vector<VisibleDevice> visible;
  // "there is no device 9": this entry does not name a device, and the entries after it are
  // ignored.
  std::string error;
};

// Applies one mask; std::nullopt means that the variable is not set and every device is visible.
// Numbers count GPUs in the order of their addresses; a UUID may be shortened as long as it is
// unambiguous. Empty, "-1" and "NoDevFiles" hide everything on purpose. An entry that does not name
// a device also hides all devices after it.
MaskedDevices apply_mask(const FoundDevices& found, const std::optional<std::string>& mask);

// Applies two masks of one vendor (AMD: ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES). Numbers in
// the upper mask count the devices that the lower one leaves.
MaskedDevices apply_masks(const FoundDevices& found, const std::optional<std::string>& lower,
                          const std::optional<std::string>& upper);

}  // namespace ivy
