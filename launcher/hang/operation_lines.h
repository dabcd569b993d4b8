// SPDX-License-Identifier: Apache-2.0
// Describes the ranks' operations in the comm runtime for users: one line for all ranks in the same
// state. Pure. Thread: any.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

struct HostOperations {
  std::string host;
  Operations operations;
};

// clang-format off
//   rank 3 did not enter all_reduce #812 of "world" (last entered all_reduce #811); ranks 0-2 wait in it (1024 f32, sum) for 30 s
//   ranks 0-2 (host a): in all_reduce #812 of "world" (1024 f32, sum), waiting for the others, for 30 s
//   rank 3 (host b, pid 77): between operations: finished all_reduce #811 of "world" 30 s ago
//   rank 4 (host b, pid 78; SIGKILL): was in barrier #812 of "world", at the start, entered 2 s ago
// clang-format on
// Lists absent ranks first, as for torch's collectives (flight_analysis.h); then all ranks, in
// order. Lines have no newline. Returns an empty text if no rank has attached. `silent`: hosts that
// listen but did not answer, which are named.
std::string operation_lines(const std::vector<HostOperations>& hosts,
                            const std::vector<std::string>& silent);

// waits_for_exited() of flight_analysis.h, and receives from and sends to ranks that have exited.
std::vector<std::string> operation_waits(const std::vector<HostOperations>& hosts,
                                         const std::set<std::uint32_t>& exited);

// Returns the operation as a text such as: all_reduce #812 of "world".
std::string name_of_operation(const OperationState& state);

}  // namespace ivy
