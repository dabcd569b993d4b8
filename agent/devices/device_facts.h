// SPDX-License-Identifier: Apache-2.0
// Converts the findings into the facts that the launcher receives. Pure; thread: any.
#pragma once

#include <vector>

#include "agent/devices/found_devices.h"
#include "agent/devices/probe_answer.h"
#include "proto/contract/core_list.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct DeviceFindings {
  FoundDevices found;
  CoreList allowed;         // Empty unless requested.
  std::vector<Core> cores;  // Empty unless requested.
};

// Fills accelerators, accelerator_source, devices, device_view, core_list and allowed_cores.
// `environment` is the host's and supplies the masks and the scheduler's variables; a mask in
// `masks` (from -x) overrides the host's.
void set_device_facts(const DeviceFindings& findings, const Environment& environment,
                      const Environment& masks, HostFacts& facts);

}  // namespace ivy
