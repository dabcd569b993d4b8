// SPDX-License-Identifier: Apache-2.0
// The failure detectors: one reads the supervisor's status page, one watches the processes of this
// host if there is no supervisor, and one adds the caller's interrupt.
#pragma once

#include <cstdint>
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

// Covers the ranks in `members`. Reports failures of the communicator, whose name in the page is
// unique in the generation. The page must outlive it.
std::unique_ptr<FailureDetector> make_page_detector(const comm_status::StatusPage& page,
                                                    std::string communicator,
                                                    std::vector<Member> members, std::int32_t self);

// Knows which ranks of this host have finalized their world. Implemented by JobMember.
class LeftRanks {
 public:
  virtual ~LeftRanks() = default;
  virtual bool has_left(std::int32_t world_rank) const = 0;
};

// Watches the processes of `members` on this host. `left` must outlive it; null means that no rank
// has finalized.
std::unique_ptr<FailureDetector> make_process_detector(std::vector<Member> members,
                                                       std::int32_t self, const LeftRanks* left);

// Reports the findings of `inner`, and `failure` to a call that its caller interrupts
// (interrupt.h).
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

// Returns the failure that ranks report if they need `member`, which died or left. Requires that
// status.state is not kAlive.
Failure death_of(const Member& member, const comm_status::RankStatus& status);

// Returns, for example, "rank 3 (node2, pid 4711)".
std::string name_of_rank(std::int32_t world_rank, const std::string& host, std::int32_t pid);

}  // namespace ivy::comm
