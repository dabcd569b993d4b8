// SPDX-License-Identifier: Apache-2.0
// Finds the ranks that an NCCL collective waits for, from the data of our NCCL profiler plug-in on
// all hosts (comm/nccl_profiler), for programs without torch's flight records. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

// Returns lines for each communicator in which a rank waits:
//
//   rank 3 did not enter all_reduce #17 of NCCL communicator 0x1a2b (last entered all_reduce #16
//     12 s ago); ranks 0-2 wait in it (1024 f32) for 12 s
//   ranks differ at collective #5 of NCCL communicator 0x1a2b "tp": ranks 0-2 are in all_reduce
//     (1024 f32); rank 3 is in broadcast (8 u8, root 0)
//   ranks 0-3 are in all_reduce #17 of NCCL communicator 0x1a2b (1024 f32) for 12 s, and all ranks
//     have entered it; the device of rank 3 has not started it; rank 2 waits for data from rank 1
//
// Without the events of NCCL's kernels it is not known whether an operation has finished. Then
// ranks that have entered fewer operations are named once the others have been ahead for a second.
std::vector<std::string> nccl_lines(const std::vector<NcclPosition>& positions);

}  // namespace ivy
