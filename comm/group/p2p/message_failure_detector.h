// SPDX-License-Identifier: Apache-2.0
// Finds out why an awaited rank sends nothing: a failure that this host's members share, or a death
// or end that the detector knows.
//
// Thread: any.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

class MessageFailureDetector {
 public:
  // `local` and `detector` may be null.
  MessageFailureDetector(const PointToPointOptions& options, const SharedGroup* local,
                         std::unique_ptr<FailureDetector> detector)
      : options_(options), local_(local), detector_(std::move(detector)) {}

  // A failure that another rank of this host has found.
  MaybeFailure shared() const { return local_ != nullptr ? local_->failure() : std::nullopt; }
  // Checks the detector. Of ranks that have finalized, it reports only `missed`.
  MaybeFailure check(std::int32_t missed);
  // Returns true if that rank has finalized some time ago; false also if that is not known here.
  bool has_left(std::int32_t rank);
  // Returns why the connection to that rank has ended. Waits up to FailureDetector::kVerdictTime,
  // because a connection closes before the reason is known.
  Failure connection_failure(std::int32_t rank, const std::string& why);
  std::chrono::milliseconds poll_interval(std::chrono::milliseconds at_most) const {
    return detector_ != nullptr ? std::min(at_most, detector_->poll_interval()) : at_most;
  }

  // The communicator is about to break: ends waits for connections.
  void cancel() { is_cancelled_.store(true); }
  const std::atomic<bool>& is_cancelled() const { return is_cancelled_; }

 private:
  const PointToPointOptions& options_;
  const SharedGroup* const local_;
  const std::unique_ptr<FailureDetector> detector_;
  std::mutex mutex_;  // One thread at a time checks the detector: several wait for messages.
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace ivy::comm
