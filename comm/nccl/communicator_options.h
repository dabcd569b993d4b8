// SPDX-License-Identifier: Apache-2.0
// State and callbacks that a communicator provides to its NCCL part.
//
// A value; the objects that it refers to outlive its user.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/failed_communicator.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

struct DeviceCommunicatorOptions {
  std::string name;
  std::string key;                      // Prefix of its keys in the store.
  store::Client* store = nullptr;       // Null: a world of one.
  std::vector<std::string> rank_names;  // "rank 3 (node2, pid 77)", by rank.
  std::vector<std::int32_t> world_ranks;
  bool spans_hosts = false;  // Pretended hosts count as hosts, too.
  std::int32_t rank = 0;
  std::string host;
  std::chrono::nanoseconds timeout{0};  // How long an enqueued operation may take.
  // Returns why waiting is in vain: a death, or another rank's failure. Called by any thread.
  std::function<MaybeFailure()> trouble;
  // Told of failures that were found while no call was under way. Called by a thread of this
  // object, so it must not destroy the object.
  std::function<void(const Failure&)> found;
  // See EnqueuedWatch::tick; called by the same thread.
  std::function<MaybeFailure(const Enqueued*)> tick;
  // Says why an operation may not be done in time: "rank 3 has not called it". Any thread; may ask
  // the store.
  std::function<std::string(const Enqueued&)> why_late;
  // Returns in what the ranks' calls differ, as far as they have told: what NCCL fails with may be
  // that. Any thread; asks the store; may be empty.
  std::function<MaybeFailure()> difference;
  // Whether this one is to be revoked and not aborted: a death has broken it, after which the
  // survivors may shrink. Any thread; may be empty, as keep.
  std::function<bool()> may_keep;
  std::function<void(std::unique_ptr<RevokedHandle>)> keep;
  std::shared_ptr<Parent> parent;  // From which it may be made; null: none.
};

}  // namespace ivy::comm::nccl
