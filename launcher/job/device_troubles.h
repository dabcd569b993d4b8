// What hosts say about their devices after a failure: related to the launcher's clock and to the
// ranks whose devices they are, and kept for the report. Thread: the loop's.
#pragma once

#include <cstddef>

#include "launcher/job/job_context.h"

namespace ivy {

// Notes beyond 256 of an attempt are dropped; those of another attempt, and of devices
// that the job may not use, are ignored.
void take_device_trouble(JobContext& job, std::size_t host, const DeviceTrouble& trouble);

}  // namespace ivy
