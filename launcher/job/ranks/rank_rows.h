// SPDX-License-Identifier: Apache-2.0
// One row for each rank, with its state and its resource usage, for `ivyctl top` and
// --metrics-file. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hang/operation_lines.h"
#include "launcher/job/core/job_workers.h"
#include "launcher/plan/job_plan.h"
#include "proto/wire/ctl.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Adds the rows. The rows of a host without an answer have no usage.
void add_rank_rows(const JobWorkers& workers, const std::vector<HostOperations>& answers,
                   std::int64_t now_ns, ctl::RanksDescription& out);

// Fills in the position in the program of each rank that is not in an operation of ivycomm.
void add_places(const HostEvidence& evidence, ctl::RanksDescription& out);

// Returns the processor time between two samples in percent of one processor: 400 means four
// processors. Returns nullopt if a sample is missing, or if the rank has another process now.
std::optional<double> cpu_percent(const ctl::RankRow& before, const ctl::RankRow& now);
// Returns how long ago a rank last printed something: "3.2 s ago", "never".
std::string output_age_text(std::int64_t age_ms);

}  // namespace ivy
