// SPDX-License-Identifier: Apache-2.0
// Reasons to end a wait early: the death of a rank, the loss of a host, an error that another rank
// reported. Waits check it only on their slow path.
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

  // A futex word that changes and is woken whenever check() may have something new to report; null:
  // there is none, and waits call check() every poll_interval().
  virtual const std::atomic<std::uint32_t>* word() const = 0;
  virtual std::chrono::milliseconds poll_interval() const = 0;

  // Returns why the communicator that owns this detector cannot go on; nothing: it can. A rank that
  // has finalized is reported only to those that wait for it: `waited_for`, a rank in the
  // communicator.
  virtual MaybeFailure check(std::int32_t waited_for) = 0;
  MaybeFailure check() { return check(kAnyone); }
  // The same without rate limiting: a peer hung up and may have said why.
  virtual MaybeFailure check_now(std::int32_t waited_for) { return check(waited_for); }
  // True if that rank of the communicator has finalized, so long ago that its last operation needs
  // no patience any more. False also if it cannot be known here. Cheap.
  virtual bool has_left(std::int32_t rank) = 0;
  // A connection's end is known a moment before its reason: the finder asks for the reason for
  // kVerdictTime, every kVerdictStep.
  static constexpr std::chrono::milliseconds kVerdictTime{300};
  static constexpr std::chrono::milliseconds kVerdictStep{2};
  static constexpr std::int32_t kAnyone = -1;
  // No rank is waited for: ranks that have left are not missed.
  static constexpr std::int32_t kNobody = -2;
};

}  // namespace ivy::comm
