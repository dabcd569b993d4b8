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

// A rank and the pid of its process.
using RankProcess = std::pair<std::uint32_t, pid_t>;

// Adds a row for each rank whose process is in `all`, including all processes below it. A rank's
// devices are those in `held` on which its processes hold memory. Pure, except that it reads the
// length of a clock tick and the page size.
void add_usage(const std::vector<RankProcess>& ranks, const std::vector<ProcessStat>& all,
               const std::vector<HeldMemory>& held, Operations& answer);

}  // namespace ivy
