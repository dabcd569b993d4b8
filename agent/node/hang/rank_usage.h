// SPDX-License-Identifier: Apache-2.0
// Resource usage of the ranks' processes, for `ivyctl top`. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "agent/devices/watch_answer.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// A rank and its own process.
using RankProcess = std::pair<std::uint32_t, pid_t>;

// Adds a row for each rank whose process is among `all`, with everything below it; a rank's devices
// are those of `held` whose memory its processes hold. Pure, but for the sizes of a clock tick and
// of a page.
void add_usage(const std::vector<RankProcess>& ranks, const std::vector<ProcessStat>& all,
               const std::vector<HeldMemory>& held, Operations& answer);

}  // namespace ivy
