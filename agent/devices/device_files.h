// What the kernel's files tell about accelerators. Reads files only. Thread: any.
//
//   /proc/driver/nvidia/gpus/*/information         the driver's devices
//   /proc/driver/nvidia/capabilities/gpu*/mig      parts of them (MIG)
//   /sys/bus/pci/devices/*                         0x10de of class 0x03* (display, 3D)
//   /dev/nvidia<minor>                             whether it may be used: containers, Slurm
//   /sys/class/kfd/kfd/topology/nodes/*            AMD: nodes with simd_count > 0
//   /dev/kfd, /dev/dri/renderD<minor>              whether these may be used
//   /sys/class/net/*/device                        which network interface is near
#pragma once

#include <string>

#include "agent/devices/found_devices.h"

namespace ivy {

// `root` is "" for this host, or a directory that stands for "/" in tests. A host without
// accelerators costs one directory of the PCI bus. Looks at no more than 4096 entries of each
// directory.
DeviceFiles read_device_files(const std::string& root);

// Where tests have the supervisor look instead of "/": IVY_DEVICE_ROOT, from our own environment.
// Empty, and so "/", where this process has rights that its caller lacks (AT_SECURE).
std::string device_root();

}  // namespace ivy
