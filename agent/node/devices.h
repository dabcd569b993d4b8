// How many accelerators this host has, by what the kernel shows. Reads files only: no driver
// library. Thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace ivy {

struct Devices {
  std::uint32_t count = 0;
  std::string source;  // "nvidia", "amd" or empty.
  bool operator==(const Devices&) const = default;
};

// `root` is "" for this host, or a directory that stands for "/" in tests. In this order:
//   /proc/driver/nvidia/gpus/*                    one entry per device of the loaded NVIDIA driver
//   /sys/bus/pci/devices/*/{vendor,class}         0x10de and class 0x03* (display, 3D), without
//   driver /sys/class/kfd/kfd/topology/nodes/*/properties  AMD: nodes with simd_count > 0
// Looks at no more than 4096 entries of each.
Devices find_devices(const std::string& root);

}  // namespace ivy
