// SPDX-License-Identifier: Apache-2.0
// A communicator's collectives on device memory, by NCCL. If NCCL lacks the reduction, or ranks
// share devices, the data is copied through host memory instead (device_staging.h).
//
// For the first operation, and for each one through host memory, all ranks synchronize, so that
// mismatches and deaths are found before NCCL is called. Others run ahead: each rank enqueues
// NCCL's part on its stream, and the ranks compare their calls afterwards (device_check.h).
//
// Calls, in order:
//
//     an operation       admit(), choose_path(), then by path
//       kEnqueued        enqueue(), or join_group() inside a DeviceGroup
//       kSynchronized    begin_synchronized(), run_synchronized(), end_synchronized()
//     ivy_prepare_device begin_prepare(), begin_synchronized(), prepare(), end_synchronized()
//     a new group        split() on the parent, adopt() on the group
//     a repaired world   release_device_state() on the broken one, inherit() on the new one
//     the end            abort() if the communicator breaks, end() in any case
//
// begin_synchronized() and end_synchronized() also enclose every operation on host memory.
//
// Threads: run_synchronized(), prepare() and split() are called with the communicator's lock held.
// All others may be called by any thread.
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

// How the ranks carry out an operation; the same on all of them.
enum class DevicePath : std::uint8_t {
  kSynchronized,  // They synchronize first.
  kEnqueued,      // Each enqueues its part, and they compare their calls later.
};

class DeviceBackend final : private nccl::DeviceCommunicatorOwner {
 public:
  explicit DeviceBackend(DeviceContext context);
  ~DeviceBackend() override;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // Prepares an operation. Returns a failure if it was rejected, before anything was sent. An
  // asynchronous operation gets a separate stream, on which it starts after the work that is now on
  // the caller's stream.
  MaybeFailure admit(nccl::DeviceOperation& operation, bool is_async);
  // Chooses the path of an admitted operation, and numbers it if it is a collective that will be
  // enqueued. Call it once for each operation, in the order of the calls.
  DevicePath choose_path(nccl::DeviceOperation& operation);

  // Call at the start of a synchronized operation, on host or device memory. Costs nothing before
  // the first operation on a device.
  void begin_synchronized(OperationShape& shape) {
    if (has_begun_.load(std::memory_order_relaxed)) note_synchronized(shape);
  }
  // Call at the end of a synchronized operation.
  void end_synchronized() {
    if (has_begun_.load(std::memory_order_relaxed)) check_.end_synchronized();
  }
  // Synchronizes the ranks, then runs the operation. Returns false if the communicator is broken.
  bool run_synchronized(const OperationCall& call, const nccl::DeviceOperation& operation);

  // Puts an operation on its stream without waiting for any rank. Requires is_prepared(). `work`
  // may be null.
  Outcome enqueue(const nccl::DeviceOperation& operation, std::chrono::nanoseconds timeout,
                  const std::shared_ptr<Work>& work);
  // Adds an operation to this thread's DeviceGroup; NCCL puts it on its stream when the group ends.
  // Requires is_prepared(). `work` may be null. Not inlined, because the caller is flattened and
  // must remain short.
  [[gnu::noinline]] Outcome join_group(const nccl::DeviceOperation& operation,
                                       std::chrono::nanoseconds timeout,
                                       const std::shared_ptr<Work>& work);

  // Call for each prepare(), in the order of the operations: it counts as the first one on a
  // device.
  void begin_prepare() { has_begun_ = true; }
  // Sets up NCCL as the first operation on region.device would, and registers memory as a window.
  // Returns false if the communicator is broken.
  bool prepare(const OperationCall& call, const nccl::DeviceRegion& region);
  // Returns whether NCCL is set up. It never is if ranks share devices.
  bool is_prepared() { return nccl_part() != nullptr && nccl_part()->is_prepared(); }

  // Creates the NCCL part of the group `name`, if NCCL can split this one's. A `color` below 0
  // means that this rank is in no group. Returns false if the communicator is broken.
  bool split(const OperationCall& call, std::int32_t color, std::int32_t key,
             const std::string& name, std::unique_ptr<nccl::DeviceCommunicator>& child);
  // Takes the NCCL part that split() of another communicator created, or null. Call it before the
  // first operation.
  void adopt(std::unique_ptr<nccl::DeviceCommunicator> device);

  // Passes a broken world's NCCL communicator, if it was revoked, to the world of its survivors
  // (IVY_NCCL_SHRINK).
  InheritedDeviceState release_device_state();
  // Takes what release_device_state() of the broken world returned. Call it before the first
  // operation.
  void inherit(InheritedDeviceState inherited) {
    parent_ = std::move(inherited).parent_for(context_.ranks);
  }

  // Call when the communicator has broken. Aborts the device's operations. If the device hangs,
  // adds that to the communicator's failure.
  void abort();
  // Records that a call has returned the reason why the communicator is broken.
  void failure_was_returned() { is_failure_returned_ = true; }
  // Ends NCCL's part before this rank leaves. Waits for enqueued operations, or returns the failure
  // if no call has returned it yet.
  Outcome end();

 private:
  class Grouped;
  nccl::DeviceCommunicatorOptions options();
  // Returns NCCL's part, or null if it was not created yet.
  nccl::DeviceCommunicator* nccl_part() { return published_part_.load(std::memory_order_acquire); }
  // Returns NCCL's part, and creates it if necessary. Requires the communicator's lock.
  nccl::DeviceCommunicator& create_nccl_part();
  bool run_staged(const OperationCall& call, const nccl::DeviceOperation& operation);
  void note_synchronized(OperationShape& shape);
  // DeviceCommunicatorOwner:
  MaybeFailure find_failure() override { return detector_.check(); }
  void device_failed(const Failure& failure) override { context_.handler.break_all(failure); }
  MaybeFailure tick(const nccl::Enqueued* oldest) override;
  std::string why_late(const nccl::Enqueued& operation) override;
  bool compares_calls() const override { return check_.compares_later(); }
  MaybeFailure find_difference() override { return check_.find_difference(); }
  bool is_revoked_after_death() const override { return is_revoked_after_death_; }
  void keep_revoked(std::unique_ptr<nccl::RevokedHandle> revoked) override;

  // Breaks the communicator. Returns its first failure, which may be another one.
  [[gnu::cold, gnu::noinline]] Outcome fail_enqueued(const Failure& failure);
  Outcome mark_end(const nccl::DeviceOperation& operation, const std::shared_ptr<Work>& work);
  // Breaks the communicator. Returns false, the result of an operation that failed.
  bool fail(Failure failure, const OperationCall& call);
  // Returns true if there is no failure; otherwise breaks the communicator and returns false.
  bool continue_unless(const MaybeFailure& failure, const OperationCall& call) {
    return !failure || fail(*failure, call);
  }

  const DeviceContext context_;
  const DeviceCheckMode mode_ = device_check_mode();
  const std::size_t max_enqueued_;
  DeviceCheck check_;                   // Compares the ranks' calls.
  std::atomic<bool> has_begun_{false};  // The first operation on a device was called.
  // Shared with works, which may outlive the communicator.
  const std::shared_ptr<std::atomic<bool>> is_broken_ = std::make_shared<std::atomic<bool>>(false);
  // Set once a call has returned the reason why the communicator is broken.
  std::atomic<bool> is_failure_returned_{false};

  DeviceFailureDetector detector_;
  SideStream side_;
  DeviceStreams streams_;
  DeviceDisplay display_;

  // For IVY_NCCL_SHRINK: whether this communicator's handle is kept after a death, the kept handle
  // (guarded by mutex_), and the broken world's handle from which NCCL creates this one's, until
  // options() passes it on.
  bool is_revoked_after_death_ = false;  // Set by options().
  std::unique_ptr<nccl::RevokedHandle> revoked_;
  std::shared_ptr<nccl::Parent> parent_;

  std::mutex enqueue_mutex_;  // Held while an operation is put on its stream.
  std::mutex mutex_;          // Guards part_ and revoked_.
  std::unique_ptr<nccl::DeviceCommunicator> part_;
  // The same as part_, for threads that do not hold mutex_.
  std::atomic<nccl::DeviceCommunicator*> published_part_{nullptr};
};

}  // namespace ivy::comm
