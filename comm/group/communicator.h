// SPDX-License-Identifier: Apache-2.0
// A communicator: this process's membership in a group of ranks, and its operations in order.
// Arguments were checked before (comm/api), so any failure here breaks the communicator.
//
// carry_out() runs an operation on host memory in its turn, or queues it behind asynchronous work:
//   perform()                     numbers it, shows its fingerprint to the other ranks, ends it
//   HostCollectives::run()        copies, shared memory or TCP, by where the ranks are
//                                 (comm/collectives)
// An operation on device memory goes to DeviceBackend, which synchronizes the ranks for the first
// one and enqueues the later ones.
//
// Thread: any; operations run one at a time, in the order of the calls. Lifetime: no call may be in
// progress when it is destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/collective.h"
#include "comm/collectives/host_collectives.h"
#include "comm/group/across_hosts.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/core/operation_display.h"
#include "comm/group/core/work.h"
#include "comm/group/p2p/messages.h"
#include "comm/group/world/job_member.h"
#include "comm/nccl/device_regions.h"
#include "comm/nccl/operation.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/liveness/interrupt.h"
#include "comm/transports/shm/shared_group.h"
#include "proto/contract/status.h"

namespace ivy::comm {

class DeviceBackend;

struct CallOptions {
  std::chrono::nanoseconds timeout{0};  // Zero means the communicator's.
  bool is_async = false;
  Interrupt interrupt;
  // How long a receive waits for its message to start.
  std::chrono::nanoseconds wait_limit = std::chrono::nanoseconds::max();
};

// The result of a call: an outcome or, if is_async is set, the work in progress.
struct OperationResult {
  Outcome outcome;
  std::shared_ptr<Work> work;
};

class Communicator final : private FailureHandler {
 public:
  // Creates the communicator of a world that JobMember::form_world() or JobMember::repair_world()
  // has formed. The job must outlive it.
  static std::unique_ptr<Communicator> of_world(JobMember& job, World world);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Membership& ranks() const { return ranks_; }
  JobMember& job() const { return job_; }

  // Perform a collective; the C interface calls them (comm/api/c_operations.cc).
  OperationResult carry_out(Collective&& collective, const CallOptions& options);
  OperationResult carry_out_on_device(nccl::DeviceOperation&& operation,
                                      const CallOptions& options);
  // Sets up NCCL as the first operation on memory of region.device would. If the region has memory,
  // it becomes a window of the communicator; every rank must pass the same amount.
  OperationResult prepare_device(const nccl::DeviceRegion& region, const CallOptions& options);
  DeviceBackend& device() { return *device_; }

  // Messages are not ordered with the collectives. Blocks until all are done. If wait_limit expires
  // before a receive has started, its status.source stays -1, and nothing is broken.
  Outcome exchange_messages(const std::vector<std::shared_ptr<MessageRequest>>& requests,
                            const CallOptions& options);
  void post_message(const std::shared_ptr<MessageRequest>& request, const CallOptions& options);

  // Makes a group collectively. Returns null if this rank is in none.
  Result<std::unique_ptr<Communicator>> make_group(std::span<const std::int32_t> ranks);
  Result<std::unique_ptr<Communicator>> split(std::int32_t color, std::int32_t key);
  // Makes a group in which only its members take part (group_rendezvous.h), even if this
  // communicator is broken. `ranks` must include this rank. A timeout of zero means the
  // communicator's.
  Result<std::unique_ptr<Communicator>> make_group_of_members(const std::string& name,
                                                              std::span<const std::int32_t> ranks,
                                                              std::chrono::milliseconds timeout,
                                                              MaybeFailure& death);

  // Waits for the operations on the device's streams and ends NCCL's part. Call
  // finish_device_work(), finalize() or leave_group() before destruction; the other two include it.
  Outcome finish_device_work();
  // For a world. If this rank may have left the last operation before the others entered it (a
  // broadcast, for example), also waits for them, and fails if they have entered a different one.
  Outcome finalize();
  // For a group, whose ranks may leave at any time. Waits for no other rank, and compares the last
  // operation with that of the ranks that have entered theirs, so that the last rank to leave
  // reports a mismatch.
  Outcome leave_group();
  // Breaks the communicator here and on every other rank, unless it is already broken.
  void abort(const std::string& reason);
  // Returns the failure that broke the communicator, or nothing if it is not broken.
  MaybeFailure failure() const { return failure_.get(); }

 private:
  using Body = std::function<bool(const OperationCall&)>;
  // `local` is null if no other rank of the communicator is on this host.
  Communicator(JobMember& job, Membership ranks, std::unique_ptr<FailureDetector> detector,
               std::unique_ptr<SharedGroup> local, std::chrono::nanoseconds timeout);
  static std::unique_ptr<Communicator> open(JobMember& job, Membership ranks,
                                            std::shared_ptr<SharedSegment> segment,
                                            std::chrono::nanoseconds timeout);
  std::chrono::nanoseconds timeout_of(const CallOptions& options) const {
    return options.timeout.count() != 0 ? options.timeout : timeout_;
  }
  [[gnu::noinline]] OperationResult run(OperationShape shape, const CallOptions& options,
                                        Body body);
  OperationResult enqueue_on_device(nccl::DeviceOperation&& operation, const CallOptions& options);
  [[gnu::noinline]] OperationResult queue(const CallOptions& options,
                                          std::function<Outcome()> call);
  template <class AnyBody>
  Outcome perform(const OperationShape& shape, std::chrono::nanoseconds timeout,
                  const AnyBody& body);
  Outcome fail_operation(const OperationCall& call, const std::exception_ptr& thrown);
  Outcome break_with(Failure failure);
  Failure break_all(const Failure& found) override { return break_with(found).failure(); }
  std::optional<Outcome> prepare_to_leave();
  Result<std::unique_ptr<Communicator>> make_child(const std::string& name,
                                                   const std::vector<std::int32_t>& ranks);

  JobMember& job_;
  const Membership ranks_;
  const std::chrono::nanoseconds timeout_;
  const std::unique_ptr<FailureDetector> detector_;
  FirstFailure failure_;

  std::mutex turn_;  // Held by the operation in progress. Guards local_ to sequence_.
  const std::unique_ptr<SharedGroup> local_;   // Null if no other rank is on this host.
  const std::unique_ptr<AcrossHosts> across_;  // Null if all ranks are on one host.
  HostCollectives host_;
  OperationDisplay display_;
  bool may_be_ahead_ = false;  // The last operation did not wait for all ranks to enter it.
  std::uint64_t sequence_ = 0;
  std::uint64_t children_ = 0;  // Groups made so far.

  Messages messages_;
  const std::unique_ptr<DeviceBackend> device_;
  WorkQueue queue_;  // Declared last, so that it is destroyed first.
};

}  // namespace ivy::comm
