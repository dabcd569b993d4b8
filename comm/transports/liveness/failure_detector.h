// SPDX-License-Identifier: Apache-2.0
// Reasons to end a wait early: the death of a rank, the loss of a host, an error that another rank
// reported. Waits check it only on their slow path. Implemented in failure_detectors.cc, and by
// AgreedDetector in comm/group/world/job_member.cc; JobMember::make_failure_detector() chooses one.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "comm/contract/failure.h"

namespace ivy::comm {

class FailureDetector {
 public:
  virtual ~FailureDetector() = default;

  // Returns null, or a futex word that is changed and woken when check() may have something new;
  // read it before check(). Waits also check every poll_interval(): finalizing changes no word.
  virtual const std::atomic<std::uint32_t>* wake_word() const = 0;
  virtual std::chrono::milliseconds poll_interval() const = 0;

  // Returns why the communicator that owns this detector cannot continue, or nothing if it can. A
  // rank that has finalized is reported only to a caller that waits for it: `waited_for`, a rank in
  // the communicator.
  virtual MaybeFailure check(std::int32_t waited_for) = 0;
  MaybeFailure check() { return check(kAnyRank); }
  // As check(), without rate limiting. For a peer that has hung up: the reason may be known by now.
  virtual MaybeFailure check_now(std::int32_t waited_for) { return check(waited_for); }
  // Returns whether that rank of the communicator finalized so long ago that none of its messages
  // is still in transit. Returns false if that is not known here. Cheap.
  virtual bool has_left(std::int32_t rank) = 0;
  // A connection closes a moment before the reason is known: callers check for it every
  // kVerdictStep, for kVerdictTime.
  static constexpr std::chrono::milliseconds kVerdictTime{300};
  static constexpr std::chrono::milliseconds kVerdictStep{2};
  static constexpr std::int32_t kAnyRank = -1;
  // For a caller that waits for no rank: ranks that have finalized are not reported.
  static constexpr std::int32_t kNoRank = -2;
};

}  // namespace ivy::comm
