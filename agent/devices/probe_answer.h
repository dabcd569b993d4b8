// SPDX-License-Identifier: Apache-2.0
// Output of ivy-probe for the supervisor: one line for each fact. In this list, blanks after the
// keyword stand for tabs, which separate the fields (probe_lines.h).
//
//   ivy-probe 1                              first, with the version of this format
//   ivy nvml DRIVER                          NVML works, with this version of the driver
//   ivy no-nvml REASON                       instead, if it does not
//   ivy device BDF UUID MINOR MIG MODEL      MIG: 1 if the GPU is in MIG mode, otherwise 0
//   ivy slice BDF GI CI UUID                 a MIG instance of the device at this address
//   ivy user UUID PID BYTES                  a process on the device or slice with this UUID
//   ivy memory UUID BYTES                    in use there by any process
//   ivy fabric UUID CLUSTER/CLIQUE           the NVLink domain of the device
//   ivy core PROCESSORS NUMA PACKAGE L3      PROCESSORS is a core list (core_list.h)
//   ivy end
//
// BDF is the PCI address (bus, device, function), MINOR the N of /dev/nvidiaN, GI and CI the
// numbers of the GPU instance and the compute instance. A number that is unknown is -1. Lines that
// do not start with "ivy" are output of a library or the dynamic linker. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/nvidia_devices.h"
#include "proto/contract/core_list.h"
#include "proto/contract/status.h"

namespace ivy {

// One physical core, as CoreFacts in job.proto. A number is -1 if it is unknown.
struct Core {
  CoreList processors;  // Its hardware threads.
  int numa_node = -1;
  int package = -1;
  int l3 = -1;  // The L3 cache that it uses.
  bool operator==(const Core&) const = default;
};

struct ProbeAnswer {
  NvmlAnswer nvml;
  std::vector<Core> cores;
};

// Longer output is rejected. 4096 cores and 64 devices with 100 processes each take less.
inline constexpr std::size_t kMaxProbeBytes = 1u << 20;

std::string probe_text(const ProbeAnswer& answer);
// Fails with DataLoss if the text is incomplete or malformed; the message includes any other
// output.
Result<ProbeAnswer> parse_probe_text(std::string_view text);

}  // namespace ivy
