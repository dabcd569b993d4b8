// SPDX-License-Identifier: Apache-2.0
// Brings the members of a new group together through the job's store: they agree on the group's
// ranks and share memory on each host. Ranks that are not members need not call anything.
//
// Thread: any.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "comm/contract/failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/job.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Every member calls it with the same membership, whose name no group of this world has had before.
// Null: this rank shares memory with no other. Fails on every member alike, but for a death or a
// timeout, which each sees for itself. DeadlineExceeded names the members who did not come;
// FailedPrecondition: they name different ranks; ResourceExhausted: there is no memory to share;
// Unavailable: one has died, and `death` says who and how.
Result<std::shared_ptr<SharedSegment>> form_group_segment(Job& job, const Membership& members,
                                                          std::chrono::milliseconds timeout,
                                                          MaybeFailure& death);

}  // namespace ivy::comm
