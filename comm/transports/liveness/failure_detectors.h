// SPDX-License-Identifier: Apache-2.0
// The detectors there are: one reads the supervisor's status page; where no supervisor is, one
// watches the processes of this host itself, and one asks what other hosts' ranks have found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/contract/member.h"
#include "comm/transports/liveness/failure_detector.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/status_page.h"

namespace ivy::comm {

// Covers the ranks in `members`, and reports about the communicator, whose name in the page is
// unique in the generation. The page outlives it.
std::unique_ptr<FailureDetector> make_page_detector(const comm_status::StatusPage& page,
                                                    std::string communicator,
                                                    std::vector<Member> members, std::int32_t self);

// Watches the processes of `members` that are on this process's host, and asks which of their ranks
// have finalized.
std::unique_ptr<FailureDetector> make_process_detector(
    std::vector<Member> members, std::int32_t self,
    std::function<bool(std::int32_t world_rank)> has_left);

// For ranks on several hosts without a supervisor: reports the findings of `inner`; and, with every
// new event that `count_news` counts and once in a while, those of `find_agreed`, which reads from
// the job's store the failure that another host's rank found.
std::unique_ptr<FailureDetector> make_agreed_detector(std::unique_ptr<FailureDetector> inner,
                                                      std::function<std::uint64_t()> count_news,
                                                      std::function<MaybeFailure()> find_agreed);

// Reports what `inner` finds; and `failure` to a call that its caller calls off (interrupt.h).
std::unique_ptr<FailureDetector> make_interruptible_detector(std::unique_ptr<FailureDetector> inner,
                                                             const Failure& failure);

// The kinds of failures that ranks report themselves.
inline constexpr std::pair<FailureKind, control::ReportKind> kReportKinds[] = {
    {FailureKind::kMismatch, control::ReportKind::kMismatch},
    {FailureKind::kTimeout, control::ReportKind::kTimeout},
    {FailureKind::kAborted, control::ReportKind::kAborted},
    {FailureKind::kTransport, control::ReportKind::kTransportLost},
    {FailureKind::kOther, control::ReportKind::kInternal}};

// Returns the page's status of the process in that member, even after its rank was restarted.
comm_status::RankStatus status_of(const comm_status::StatusPage& page, const Member& member);

// The failure of ranks that need a rank which died or left. status.state is not kAlive.
Failure death_of(const Member& member, const comm_status::RankStatus& status);

// "rank 3 (node2, pid 4711)"
std::string name_of_rank(std::int32_t world_rank, const std::string& host, std::int32_t pid);

}  // namespace ivy::comm
