// SPDX-License-Identifier: Apache-2.0
// Intel's discrete GPUs: what the kernel's drivers (i915, xe) report, and which of them may be
// used. A processor's own graphics do not count. Thread: any.
//
//   /sys/class/drm/card*/device                    0x8086, behind a bridge of the PCI bus
//   /sys/class/drm/card*/device/tile*, .../gt/gt*  its tiles
//   /dev/dri/renderD<minor>                        whether it may be used
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

// Reads files only; in the order of PCI addresses.
std::vector<IntelDevice> read_intel_files(const std::string& root);

// `bus`: the same devices as found on the PCI bus. Level Zero shows each tile as a device of its
// own (ZE_FLAT_DEVICE_HIERARCHY=FLAT, its default), and so does the list. Pure.
void add_intel(const std::vector<IntelDevice>& devices, const std::vector<BusDevice>& bus,
               FoundDevices& found);

}  // namespace ivy
