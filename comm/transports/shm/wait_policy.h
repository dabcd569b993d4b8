// SPDX-License-Identifier: Apache-2.0
// The conditions that end a member's wait early: a known failure, the detector, the operation's
// deadline. Knows the current operation, so that every failure names it, and determines the rank
// that caused the failure, as far as that is visible on this host.
//
// Thread: the operation's.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/liveness/wait_watch.h"
#include "comm/transports/shm/shared_failure.h"
#include "comm/transports/shm/shared_members.h"

namespace ivy::comm {

class WaitPolicy {
 public:
  // `detector` may be null. All arguments must outlive this.
  WaitPolicy(SharedSegment& segment, const SharedGroupOptions& options, SharedFailure& failure,
             FailureDetector* detector)
      : segment_(segment), options_(options), failure_(failure), detector_(detector) {}

  void set_watch(WaitWatch* watch) { watch_ = watch; }
  // Call when the communicator enters an operation, which takes one or more steps here.
  void enter(const OperationShape& shape, std::uint64_t sequence) {
    previous_shape_ = entered_shape_;
    entered_shape_ = shape;
    segment_.member(options_.self).operation.store(sequence, std::memory_order_relaxed);
  }
  void begin_step(const OperationCall& call) {
    shape_ = call.shape;
    sequence_ = call.sequence;
    deadline_ = &call.deadline;
  }

  const OperationShape& shape() const { return shape_; }
  Deadline& deadline() const { return *deadline_; }
  FailureDetector* failure_detector() const { return detector_; }
  bool is_broken() const { return failure_.is_broken(); }

  // Called repeatedly by a wait for that member. Returns false if the communicator is broken. If
  // another rank has died and the member itself is in the operation, the wait continues for at most
  // FailureDetector::kVerdictTime: the member may already have all it needs to finish, and
  // otherwise breaks the communicator.
  bool may_continue(std::uint32_t member);
  // Both break the communicator: the member is in a different operation, or its memory cannot be
  // read.
  void report_mismatch(std::uint32_t member, const Fingerprint& peer_call,
                       const Fingerprint& own_call);
  void report_unreachable(std::uint32_t member, const std::string& why);

 private:
  std::int32_t rank_of(std::uint32_t member) const { return options_.members[member].rank; }
  bool is_left_to(std::uint32_t member, const Failure& found);
  void break_with(const Failure& found);
  std::string name_of(std::uint32_t member) const;
  std::vector<std::uint32_t> absent_members() const;
  std::optional<std::uint32_t> stopped_member(const std::vector<std::uint32_t>& absent) const;
  std::uint32_t slowest_member(const std::vector<std::uint32_t>& absent) const;
  std::string absence_text(std::uint32_t culprit, const std::vector<std::uint32_t>& absent) const;
  LongWait long_wait(std::uint32_t member) const;
  void give_up(std::uint32_t member);
  Failure timeout_failure(const std::string& because) const;
  void blame(Failure& failure, std::uint32_t member) const;
  void add_operation(Failure& failure) const;

  SharedSegment& segment_;
  const SharedGroupOptions& options_;
  SharedFailure& failure_;
  FailureDetector* const detector_;
  WaitWatch* watch_ = nullptr;
  OperationShape shape_;
  std::uint64_t sequence_ = 0;  // The communicator's number of the operation.
  Deadline* deadline_ = nullptr;
  // When the first death was seen.
  std::optional<std::chrono::steady_clock::time_point> death_seen_at_;
  // The communicator's current operation, and the previous one.
  OperationShape entered_shape_;
  OperationShape previous_shape_;
};

}  // namespace ivy::comm
