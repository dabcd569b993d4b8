// SPDX-License-Identifier: Apache-2.0
// State that a communicator provides to its NCCL part, and the interface that it implements.
//
// DeviceCommunicatorOptions is a value; the objects that it refers to outlive its user.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/failed_communicator.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

// Implemented by DeviceBackend (group/device). Thread: any, except where noted.
class DeviceCommunicatorOwner {
 public:
  virtual ~DeviceCommunicatorOwner() = default;
  // Returns why waiting is pointless (a rank has died, or another rank has failed), or nothing.
  virtual MaybeFailure find_failure() = 0;
  // Receives a failure that was found while no call was in progress. Called by a thread of the
  // DeviceCommunicator, so it must not destroy the DeviceCommunicator.
  virtual void device_failed(const Failure& failure) = 0;
  // See EnqueuedOwner::tick(); called by the same thread.
  virtual MaybeFailure tick(const Enqueued* oldest) = 0;
  // Returns why an operation may be late, such as "rank 3 has not called it". May query the store.
  virtual std::string why_late(const Enqueued& operation) = 0;
  // Returns true if find_difference() can find anything.
  virtual bool compares_calls() const = 0;
  // Returns how the ranks' calls differ, as far as they have published them: this may be the cause
  // of an error of NCCL. Queries the store.
  virtual MaybeFailure find_difference() = 0;
  // Returns true if the handle is to be revoked instead of aborted after a death, so that the
  // survivors can shrink it.
  virtual bool is_revoked_after_death() const = 0;
  // Receives the revoked handle.
  virtual void keep_revoked(std::unique_ptr<RevokedHandle> revoked) = 0;
};

struct DeviceCommunicatorOptions {
  std::string name;
  std::string key;                      // Prefix of its keys in the store.
  store::Client* store = nullptr;       // Null if this rank is the only one.
  std::vector<std::string> rank_names;  // Such as "rank 3 (node2, pid 77)", by rank.
  std::vector<std::int32_t> world_ranks;
  bool spans_hosts = false;  // Hosts of --fake-hosts count too.
  std::int32_t rank = 0;
  std::string host;
  std::chrono::nanoseconds timeout{0};  // How long an enqueued operation may take.
  DeviceCommunicatorOwner* owner = nullptr;
  // The broken communicator from which NCCL can create this one by a shrink. May be null.
  std::shared_ptr<Parent> parent;
};

}  // namespace ivy::comm::nccl
