// SPDX-License-Identifier: Apache-2.0
// Converts what was found into what the launcher gets. Pure; thread: any.
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
  CoreList allowed;         // Empty where nobody has asked.
  std::vector<Core> cores;  // Empty where nobody has asked.
};

// Fills accelerators, accelerator_source, devices, device_view, core_list and allowed_cores.
// `environment` is the host's, whose masks and scheduler's variables count; `masks` are those of
// -x, which count instead.
void set_device_facts(const DeviceFindings& findings, const Environment& environment,
                      const Environment& masks, HostFacts& facts);

}  // namespace ivy
