// SPDX-License-Identifier: Apache-2.0
// Determines why an awaited rank sends nothing: a failure that this host's members share, or a
// death or exit that the detector knows.
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

  // Returns a failure that another rank of this host has found.
  MaybeFailure shared() const { return local_ != nullptr ? local_->failure() : std::nullopt; }
  // Checks the detector. Of the ranks that have finalized, it reports only `missed`.
  MaybeFailure check(std::int32_t missed);
  // Returns whether that rank finalized some time ago. Returns false if that is not known here.
  bool has_left(std::int32_t rank);
  // Returns the reason why the connection to that rank has closed. Waits up to
  // FailureDetector::kVerdictTime, because a connection closes before the reason is known.
  Failure connection_failure(std::int32_t rank, const std::string& why);
  std::chrono::milliseconds poll_interval(std::chrono::milliseconds at_most) const {
    return detector_ != nullptr ? std::min(at_most, detector_->poll_interval()) : at_most;
  }

  // Call when the communicator is about to break. Ends waits for connections.
  void cancel() { is_cancelled_.store(true); }
  const std::atomic<bool>& is_cancelled() const { return is_cancelled_; }

 private:
  const PointToPointOptions& options_;
  const SharedGroup* const local_;
  const std::unique_ptr<FailureDetector> detector_;
  // Held while the detector is checked, because several threads may wait for messages.
  std::mutex mutex_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace ivy::comm
