// SPDX-License-Identifier: Apache-2.0
// Intel's discrete GPUs as reported by the kernel drivers (i915, xe), and whether each may be used.
// Integrated graphics do not count. Thread: any.
//
//   /sys/class/drm/card*/device                    0x8086, behind a bridge of the PCI bus
//   /sys/class/drm/card*/device/tile*, card*/gt/gt* its tiles
//   /dev/dri/renderD<minor>                        permission to use it
#pragma once

#include <string>
#include <vector>

#include "agent/devices/found_devices.h"

namespace ivy {

// Reads files only; returns the devices in the order of their PCI addresses. Their tiles become
// separate devices, as Level Zero does by default (ZE_FLAT_DEVICE_HIERARCHY=FLAT).
std::vector<ListedDevice> read_intel_files(const std::string& root);

}  // namespace ivy
