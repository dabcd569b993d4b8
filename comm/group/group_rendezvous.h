// SPDX-License-Identifier: Apache-2.0
// Brings the members of a new group together through the job's store. They agree on the group's
// ranks and create shared memory on each host. Ranks that are not members need not call anything.
//
// Keys, below "members/<group>/" of this world; W is a rank of the world:
//
//   memory/<W>    the path of a host's memory, from its first rank W in the group, or an empty text
//                 if that rank could not create it
//   arrived/<W>   W waits for the memory of its host
//   report/<W>    the ranks that W has passed, and why it has no shared memory, if so
//   verdict       the outcome for all members, from the group's first rank
//
// Each member, in this order:
//
//   1. The first rank of each host creates the memory and stores memory/<W>. The others of the host
//      store arrived/<W>, wait for that path and open it.
//   2. Stores report/<W>.
//   3. The group's first rank waits for all reports and stores the verdict. The others wait for it.
//
// If some member could not share memory, for example because it may not open another process's
// descriptor, the verdict is to try again with named files. The keys of this second attempt are
// below "members/<group>/named/".
//
// Thread: any.
#pragma once

#include <chrono>
#include <memory>

#include "comm/contract/failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/job_member.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Every member calls it with the same membership, whose name no other group of this world may have
// had. Returns null if this rank shares memory with no other rank. All members get the same error,
// except that each detects by itself that a member has died, or that the group's first rank does
// not respond.
//
// Fails with DeadlineExceeded if members are missing (the text names them), FailedPrecondition if
// they passed different ranks, ResourceExhausted if there is no memory to share, and Unavailable if
// a member has died. Only in the last case, `death` is set: it names the rank and the cause, which
// an Error cannot hold.
Result<std::shared_ptr<SharedSegment>> form_group_segment(JobMember& job, const Membership& members,
                                                          std::chrono::milliseconds timeout,
                                                          MaybeFailure& death);

}  // namespace ivy::comm
