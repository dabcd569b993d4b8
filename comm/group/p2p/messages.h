// SPDX-License-Identifier: Apache-2.0
// A communicator's messages, from the first of them on (point_to_point.h).
//
// Thread: any.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/p2p/point_to_point.h"
#include "comm/group/world/job.h"
#include "comm/group/world/status_rows.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

class Messages {
 public:
  // All outlive it; `local` is null where no other rank is on this host. `break_all` breaks the
  // communicator and returns what all its ranks are told.
  Messages(Job& job, const Membership& ranks, SharedGroup* local, const FirstFailure& failure,
           std::function<Failure(const Failure&)> break_all)
      : job_(job),
        ranks_(ranks),
        local_(local),
        failure_(failure),
        break_all_(std::move(break_all)) {}

  // Creates the state that the first message needs.
  PointToPoint& open();
  // Waits until all posted sends are done, as long as their receivers keep reading.
  Outcome finish_sends();
  void break_with(const Failure& failure);
  // No message is sent any more. Its thread may be about to break the communicator, and with it
  // the messages.
  void close();

 private:
  Job& job_;
  const Membership& ranks_;
  SharedGroup* const local_;
  const FirstFailure& failure_;
  const std::function<Failure(const Failure&)> break_all_;
  std::mutex mutex_;
  std::optional<StatusRow> row_;  // Guarded by mutex_, as the next.
  std::unique_ptr<PointToPoint> messages_;
};

}  // namespace ivy::comm
