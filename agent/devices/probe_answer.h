// SPDX-License-Identifier: Apache-2.0
// Output of ivy-probe for the supervisor: one line for each fact, with fields separated by tabs.
//
//   ivy-probe 1
//   ivy nvml 535.104.05                                   or: ivy no-nvml REASON
//   ivy device BDF UUID MINOR MIG(0|1) MODEL
//   ivy slice BDF GI CI UUID
//   ivy user UUID PID BYTES                                of the device or slice with this UUID
//   ivy memory UUID BYTES                                  in use there by any process
//   ivy fabric UUID CLUSTER/CLIQUE                         its NVLink domain
//   ivy core PROCESSORS NUMA PACKAGE L3
//   ivy end
//
// Lines that do not start with "ivy" are output of a library or the dynamic linker. Pure; thread:
// any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/nvidia_devices.h"
#include "proto/contract/core_list.h"
#include "proto/contract/status.h"

namespace ivy {

// One core, as CoreFacts in job.proto.
struct Core {
  CoreList processors;
  int numa_node = -1;
  int package = -1;
  int l3 = -1;
  bool operator==(const Core&) const = default;
};

struct ProbeAnswer {
  NvmlAnswer nvml;
  std::vector<Core> cores;
};

// The most that is read from a probe; 4096 cores and 64 devices with 100 processes each take less.
inline constexpr std::size_t kMaxProbeBytes = 1u << 20;

std::string probe_text(const ProbeAnswer& answer);
// Returns DataLoss if the text is incomplete or malformed; the message includes any other output.
Result<ProbeAnswer> parse_probe_text(std::string_view text);

}  // namespace ivy
