// SPDX-License-Identifier: Apache-2.0
// Asks NVML, NVIDIA's management library, which is found at run time: the build does not need it.
// Thread: any, one at a time.
#pragma once

#include "agent/devices/nvidia_devices.h"

namespace ivy {

// Loads libnvidia-ml.so.1, asks and unloads it. May take seconds, and never return where a driver
// hangs: that is why ivy-probe is a process of its own. Reports at most 64 GPUs, 16 instances of
// each and 16 processes of each.
NvmlAnswer ask_nvml();

}  // namespace ivy
