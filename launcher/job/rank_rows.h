// SPDX-License-Identifier: Apache-2.0
// The state and the usage of each rank, for `ivyctl top` and --metrics-file. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hang/operation_lines.h"
#include "launcher/job/job_workers.h"
#include "launcher/plan/job_plan.h"
#include "proto/wire/ctl.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Hosts that have not answered have no usage in their rows.
void add_rank_rows(const JobWorkers& workers, const std::vector<HostOperations>& answers,
                   std::int64_t now_ns, ctl::RanksDescription& out);

// Fills in where ranks are that are in no operation of ivycomm's.
void add_places(const HostEvidence& evidence, ctl::RanksDescription& out);

// The share of one processor between two samples: 400 % are four. Nothing: a sample is missing, or
// the rank has another process now.
std::optional<double> cpu_percent(const ctl::RankRow& before, const ctl::RankRow& now);
// When a rank has printed last: "3.2 s ago", "never".
std::string output_age_text(std::int64_t age_ms);

}  // namespace ivy
