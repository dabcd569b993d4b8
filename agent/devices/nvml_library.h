// SPDX-License-Identifier: Apache-2.0
// Queries NVML, NVIDIA's management library, which is loaded at run time: the build does not need
// it. Not thread-safe.
#pragma once

#include "agent/devices/nvidia_devices.h"

namespace ivy {

// Loads libnvidia-ml.so.1, queries it and unloads it. May take seconds, and never returns if a
// driver hangs, so it runs in a separate process, ivy-probe. Reports at most 64 GPUs with at most
// 16 MIG instances each, and at most 4096 processes on each device.
NvmlAnswer query_nvml();

}  // namespace ivy
