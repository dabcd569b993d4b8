// What an allocation says about devices, beside what its hosts show. Pure; thread: any.
#pragma once

#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"

namespace ivy {

// Refuses workers that would share the few devices which --gpus-per-task leaves visible (without
// --oversubscribe), and warns where it hides some from workers that have enough, and where the job
// was given devices and a host shows none. Nothing outside an allocation.
void check_allocated_devices(const Options& options, const std::vector<HostAnswer>& answers,
                             JobPlan& plan, std::vector<Diagnostic>& refusals);

}  // namespace ivy
