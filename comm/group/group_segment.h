// SPDX-License-Identifier: Apache-2.0
// Shares memory among the ranks of one host that form a new group, whose ranks have no other way to
// each other yet than the communicator that it is made from.
//
// Thread: one at a time (that communicator's lock).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/core/host_collectives.h"
#include "comm/transports/shm/shared_segment.h"

namespace ivy::comm {

struct GroupSegment {
  std::unique_ptr<SharedSegment> segment;  // Null: this rank shares memory with no other.
  std::string trouble;  // Why the first rank that could not do its part failed; empty: none.
};

// Every rank of the communicator takes part, also those that are in no new group: they only keep
// the exchanges in step. It is one operation, however it goes on which host, and all ranks come out
// of it with the same trouble. `local_ranks`: of the new group on this host; empty: not in it.
// False: the communicator is broken.
bool share_group_segment(const OperationCall& call, const Membership& ranks,
                         HostCollectives& collectives, const std::vector<std::int32_t>& local_ranks,
                         GroupSegment& shared);

}  // namespace ivy::comm
