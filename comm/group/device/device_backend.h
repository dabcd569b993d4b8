// SPDX-License-Identifier: Apache-2.0
// A communicator's collectives on device memory. For the first one, all ranks synchronize as for
// any operation, so that mismatches and deaths are found before NCCL is called. Later ones run
// ahead: each rank enqueues NCCL's part on the stream, and the ranks compare their calls afterwards
// (device_check.h). If NCCL lacks the reduction, or ranks share devices, the data is copied through
// host memory (device_staging.h), for which the ranks synchronize.
//
// Thread: the communicator's lock, unless a function says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/collectives/host_collectives.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/core/work.h"
#include "comm/group/device/device_check.h"
#include "comm/group/device/device_parts.h"
#include "comm/group/world/job_member.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/operation.h"
#include "comm/transports/liveness/failure_detector.h"

namespace ivy::comm {

// References to parts of the communicator, all of which outlive the backend.
struct DeviceContext {
  JobMember& job;
  const Membership& ranks;
  HostCollectives& host;
  FirstFailure& failure;
  FailureHandler& handler;
};

class DeviceBackend final : private nccl::DeviceCommunicatorOwner {
 public:
  explicit DeviceBackend(DeviceContext context);
  ~DeviceBackend() override;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // Prepares an operation. Returns a failure if it was rejected, before anything was sent. An
  // asynchronous operation gets a separate stream, on which it starts after the work that is now on
  // the caller's stream. Any thread, as for the next three functions.
  MaybeFailure admit(nccl::DeviceOperation& operation, bool is_async);
  // Returns true if the ranks synchronize before the operation, or false if each enqueues it and
  // they compare their calls later. The result is the same on all ranks. Numbers an operation that
  // will be enqueued.
  bool must_synchronize(nccl::DeviceOperation& operation);
  // Call when an operation starts for which the ranks synchronize, on host or device memory. Costs
  // nothing before the first operation on a device.
  void begin_synchronized(OperationShape& shape) {
    if (is_used_.load(std::memory_order_relaxed)) note_synchronized(shape);
  }
  void end_synchronized() {
    if (is_used_.load(std::memory_order_relaxed)) check_.end_synchronized();
  }

  // Synchronizes the ranks, then runs the operation. Returns false, like prepare() and split(), if
  // the communicator is broken.
  bool run_synchronized(const OperationCall& call, const nccl::DeviceOperation& operation);
  // Puts an operation on its stream without waiting for any rank. Requires is_prepared(). `work`
  // may be null.
  Outcome enqueue(const nccl::DeviceOperation& operation, std::chrono::nanoseconds timeout,
                  const std::shared_ptr<Work>& work);
  // Does the same inside this thread's DeviceGroup; NCCL puts the operation on the stream when the
  // group ends.
  [[gnu::noinline]] Outcome join_group(const nccl::DeviceOperation& operation,
                                       std::chrono::nanoseconds timeout,
                                       const std::shared_ptr<Work>& work);
  // Records, in the order of the calls, that prepare() will be called.
  void use() { is_used_ = true; }
  // Sets up NCCL as the first operation on region.device would, and registers memory as a window.
  bool prepare(const OperationCall& call, const nccl::DeviceRegion& region);
  bool is_prepared() { return existing() != nullptr && existing()->is_prepared(); }
  // Creates the NCCL part of the group `name`, if NCCL can split this one's. A `color` below 0
  // means that this rank is in no group.
  bool split(const OperationCall& call, std::int32_t color, std::int32_t key,
             const std::string& name, std::unique_ptr<nccl::DeviceCommunicator>& child);
  // Takes the NCCL part that split() of another communicator created, or null.
  void adopt(std::unique_ptr<nccl::DeviceCommunicator> device);

  // Passes a broken world's NCCL communicator, if it was revoked, to the world of its survivors
  // (IVY_NCCL_SHRINK). Call inherit() before the first operation.
  InheritedDeviceState release_device_state();
  void inherit(InheritedDeviceState inherited) {
    parent_ = std::move(inherited).parent_for(context_.ranks);
  }

  // Call when the communicator has broken. Aborts the device's operations, and reports if the
  // device does not return. Any thread.
  void abort();
  // Records that a call has returned the reason why the communicator is broken. Any thread.
  void failure_was_returned() { is_failure_returned_ = true; }
  // Ends NCCL's part before this rank leaves. Waits for enqueued operations, or returns the failure
  // if no call has returned it yet.
  Outcome end();

 private:
  class Grouped;
  nccl::DeviceCommunicatorOptions options();
  nccl::DeviceCommunicator& communicator();
  nccl::DeviceCommunicator* existing() { return made_.load(std::memory_order_acquire); }
  bool run_staged(const OperationCall& call, const nccl::DeviceOperation& operation);
  void note_synchronized(OperationShape& shape);
  // DeviceCommunicatorOwner:
  MaybeFailure find_failure() override { return detector_.check(); }
  void device_failed(const Failure& failure) override { context_.handler.break_all(failure); }
  MaybeFailure tick(const nccl::Enqueued* oldest) override;
  std::string why_late(const nccl::Enqueued& operation) override;
  bool compares_calls() const override { return check_.compares_later(); }
  MaybeFailure difference() override { return check_.difference(); }
  bool may_keep() const override { return may_keep_; }
  void keep(std::unique_ptr<nccl::RevokedHandle> revoked) override;

  [[gnu::cold, gnu::noinline]] Outcome fail_enqueued(const Failure& failure);
  Outcome mark(const nccl::DeviceOperation& operation, const std::shared_ptr<Work>& work);
  bool fail(Failure failure, const OperationCall& call);
  bool check(const MaybeFailure& failure, const OperationCall& call) {
    return !failure || fail(*failure, call);
  }

  const DeviceContext context_;
  const DeviceCheckMode mode_ = device_check_mode();
  const std::size_t max_enqueued_;
  DeviceCheck check_;
  std::atomic<bool> is_used_{false};  // An operation on a device was called.
  // Shared with works, which may outlive the communicator.
  const std::shared_ptr<std::atomic<bool>> is_broken_ = std::make_shared<std::atomic<bool>>(false);
  // Set once a call has returned the reason why the communicator is broken.
  std::atomic<bool> is_failure_returned_{false};

  DeviceFailureDetector detector_;
  SideStream side_;
  DeviceStreams streams_;
  DeviceDisplay display_;

  std::unique_ptr<nccl::RevokedHandle> revoked_;  // Set by keep(), with mutex_ held.
  bool may_keep_ = false;                         // Set by options().
  std::shared_ptr<nccl::Parent> parent_;

  std::mutex order_;  // Operations are enqueued one at a time, in the order of their numbers.
  std::mutex mutex_;  // Held while NCCL's part is created.
  // Created while the communicator's lock is held.
  std::unique_ptr<nccl::DeviceCommunicator> nccl_;
  // The same pointer, readable by any thread.
  std::atomic<nccl::DeviceCommunicator*> made_{nullptr};
};

}  // namespace ivy::comm
