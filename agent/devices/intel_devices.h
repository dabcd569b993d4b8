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
#include "agent/devices/small_files.h"

namespace ivy {

struct IntelDevice {
  std::string bdf;
  int tiles = 1;
  NodeState node = NodeState::kAbsent;
};

// Reads files only; returns the devices in the order of their PCI addresses.
std::vector<IntelDevice> read_intel_files(const std::string& root);

// Adds the usable devices to `found`. `bus` lists the same devices as found on the PCI bus. Each
// tile is listed as a separate device, as Level Zero does by default
// (ZE_FLAT_DEVICE_HIERARCHY=FLAT). Pure.
void add_intel(const std::vector<IntelDevice>& devices, const std::vector<BusDevice>& bus,
               FoundDevices& found);

}  // namespace ivy
