// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/message_failure_detector.h"

#include <poll.h>

#include "comm/transports/liveness/failure_detectors.h"

namespace ivy::comm {

MaybeFailure MessageFailureDetector::check(std::int32_t missed) {
  if (detector_ == nullptr) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return detector_->check(missed);
}

bool MessageFailureDetector::has_left(std::int32_t rank) {
  if (detector_ == nullptr) return false;
  const std::lock_guard lock(mutex_);
  return detector_->has_left(rank);
}

Failure MessageFailureDetector::connection_failure(std::int32_t rank, const std::string& why) {
  // The peer may have exited because the communicator was already broken.
  MaybeFailure known = shared();
  if (!known && detector_ != nullptr) {
    const std::lock_guard lock(mutex_);
    known = detector_->check_now(rank);
  }
  Deadline verdict(FailureDetector::kVerdictTime);
  while (detector_ != nullptr && !known && !is_cancelled_.load() && verdict.left().count() > 0) {
    poll(nullptr, 0, static_cast<int>(FailureDetector::kVerdictStep.count()));
    known = check(rank);
  }
  if (known) return *known;
  const TcpPeer& peer = options_.peer(rank);
  Failure failure = make_failure(FailureKind::kTransport,
                                 name_of_rank(peer.world_rank, peer.host, peer.pid) + ": " + why);
  failure.rank = peer.world_rank;
  failure.pid = peer.pid;
  set_host(failure, peer.host);
  return failure;
}

}  // namespace ivy::comm
