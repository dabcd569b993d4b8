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
  kWhole,  // Every thread, equal ones together.
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

// "ranks 0-2 are in torch's all_reduce at train.py:12; rank 3 is in no collective": where some
// ranks are inside a library's collective and others are not, by their main threads. Else empty.
std::string collective_line(const std::vector<HostStacks>& hosts);

// True if any rank has moved between two samples: by its Python stack, or where there is none by
// the time that it has computed.
bool has_moved(const std::vector<HostStacks>& before, const std::vector<HostStacks>& now);

}  // namespace ivy
