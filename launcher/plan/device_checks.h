// SPDX-License-Identifier: Apache-2.0
// Compares a Slurm allocation's devices with the devices that its hosts report. Pure; thread: any.
#pragma once

#include "launcher/plan/plan_context.h"

namespace ivy {

// Rejects workers that would share the few devices that --gpus-per-task leaves visible (without
// --oversubscribe). Warns if that option hides devices from workers that have enough, and if the
// job was allocated devices but a host shows none. Does nothing outside an allocation. Requires
// that plan.hosts are final.
void check_allocated_devices(PlanContext& context);

}  // namespace ivy
