// SPDX-License-Identifier: Apache-2.0
// Brings the members of a new group together through the job's store. They agree on the group's
// ranks and create shared memory on each host. Ranks that are not members need not call anything.
//
// Thread: any.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "comm/contract/failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/job_member.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Every member calls it with the same membership, whose name no other group of this world may have
// had. Returns null if this rank shares memory with no other rank. All members get the same error,
// except for a death or a timeout, which each detects itself. Fails with DeadlineExceeded if
// members are missing (the text names them), FailedPrecondition if they named different ranks,
// ResourceExhausted if there is no memory to share, and Unavailable if a member has died; `death`
// then says who and how.
Result<std::shared_ptr<SharedSegment>> form_group_segment(JobMember& job, const Membership& members,
                                                          std::chrono::milliseconds timeout,
                                                          MaybeFailure& death);

}  // namespace ivy::comm
