// SPDX-License-Identifier: Apache-2.0
// CUDA_VISIBLE_DEVICES and its like: which of a host's devices they leave, and in which order.
// Pure; thread: any. Source of the rules: CUDA C++ Programming Guide, "CUDA Environment Variables";
// ROCm documentation, "GPU isolation techniques".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/found_devices.h"

namespace ivy {

// A device that a mask leaves.
struct VisibleDevice {
  // Index in the list. Absent: the mask names it by a UUID, and the available sources know no
  // UUIDs; it is assumed to exist.
  std::optional<std::size_t> device;
  std::string entry;  // How a worker's own mask names it.
};

struct MaskedDevices {
  std::vector<VisibleDevice> visible;
  // "there is no device 9": this entry and those behind it name nothing.
  std::string error;
};

// A mask's text; std::nullopt: no such variable, everything is visible. Numbers count GPUs in the
// order of their addresses; UUIDs may be shortened as long as one device alone is meant. Empty,
// "-1" and "NoDevFiles" hide everything, by intention. The first entry that names nothing hides
// what stands behind it.
MaskedDevices apply_mask(const FoundDevices& found, const std::optional<std::string>& mask);

// Two layers of one vendor (AMD: ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES): numbers of the
// upper mask count what the lower one leaves.
MaskedDevices apply_masks(const FoundDevices& found, const std::optional<std::string>& lower,
                          const std::optional<std::string>& upper);

}  // namespace ivy
