// SPDX-License-Identifier: Apache-2.0
// A communicator's messages between two ranks. Their state (point_to_point.h) is created by the
// first of them.
//
// Thread: any.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/p2p/point_to_point.h"
#include "comm/group/world/job_member.h"
#include "comm/group/world/status_rows.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

class Messages {
 public:
  // All arguments must outlive it. `local` is null if no other rank is on this host.
  Messages(JobMember& job, const Membership& ranks, SharedGroup* local, const FirstFailure& failure,
           FailureHandler& handler)
      : job_(job), ranks_(ranks), local_(local), failure_(failure), handler_(handler) {}

  // Creates the state for messages if it does not exist yet.
  PointToPoint& open();
  // Waits until all posted sends are done, as long as their receivers keep reading.
  Outcome finish_sends();
  void break_with(const Failure& failure);
  // Ends all messages. Their thread may be breaking the communicator at the same time, which calls
  // break_with().
  void close();

 private:
  JobMember& job_;
  const Membership& ranks_;
  SharedGroup* const local_;
  const FirstFailure& failure_;
  FailureHandler& handler_;
  std::mutex mutex_;
  std::optional<StatusRow> row_;  // row_ and messages_ are guarded by mutex_.
  std::unique_ptr<PointToPoint> messages_;
};

}  // namespace ivy::comm
