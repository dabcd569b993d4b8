// SPDX-License-Identifier: Apache-2.0
// Describes the ranks' positions for users: one paragraph, or one line, for all ranks at the same
// position. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

struct HostStacks {
  std::string host;
  HostEvidence evidence;
};

enum class StackDetail {
  kWhole,  // Every thread; threads with equal stacks are combined.
  kMain,
  kBrief,  // One line: "ranks 0-2 (host a): in torch's all_reduce at train.py:12".
};

//   ranks 0-2,5 (hosts a, b): main thread: all_reduce (torch/distributed/distributed_c10d.py:4174)
//       wrapper (torch/distributed/c10d_logger.py:83)
//       main (train.py:12)
//     2 threads: ...
//   rank 3 (host b, pid 77; python3, stopped by a signal): no stack: gdb is not on its host's PATH
//
// Ordered by rank. `silent`: hosts that have not answered in time, which are named.
std::string stack_lines(const std::vector<HostStacks>& hosts,
                        const std::vector<std::string>& silent, StackDetail detail);

// Returns "ranks 0-2 are in torch's all_reduce at train.py:12; rank 3 is in no collective" if some
// ranks' main threads are inside a library's collective and others are not; otherwise an empty
// text.
std::string collective_line(const std::vector<HostStacks>& hosts);

// Returns true if any rank has moved between two samples, judged by its Python stack or, without
// one, by its CPU time.
bool has_moved(const std::vector<HostStacks>& before, const std::vector<HostStacks>& now);

}  // namespace ivy
