// SPDX-License-Identifier: Apache-2.0
// Creates the shared memory of a new group's ranks on one host. They exchange its path through the
// communicator from which the group is made.
//
// Thread: one at a time (that communicator's lock).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/host_collectives.h"
#include "comm/group/core/membership.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/shm/shared_segment.h"

namespace ivy::comm {

struct GroupSegment {
  std::unique_ptr<SharedSegment> segment;  // Null if this rank shares memory with no other rank.
  std::string error;                       // The error of the first rank that failed, or empty.
};

// Collective over the communicator, including ranks that are in no new group. It is one operation,
// and all ranks get the same `error`. `local_ranks` are the new group's ranks on this host, or
// empty if this rank is not in the group. Returns false if the communicator is broken.
bool share_group_segment(const OperationCall& call, const Membership& ranks,
                         HostCollectives& collectives, const std::vector<std::int32_t>& local_ranks,
                         GroupSegment& shared);

}  // namespace ivy::comm
