// SPDX-License-Identifier: Apache-2.0
// Parts of DeviceBackend besides NCCL: failure detection for threads outside an operation, the
// stream of asynchronous operations, and the display in the status page.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives/host_collectives.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/core/operation_display.h"
#include "comm/group/device/device_check.h"
#include "comm/group/world/job_member.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/failed_communicator.h"
#include "comm/nccl/operation.h"
#include "comm/transports/liveness/failure_detector.h"

namespace ivy::comm {

// Determines why an operation on the device will not finish. Thread: any.
class DeviceFailureDetector {
 public:
  // Keeps references to all arguments.
  DeviceFailureDetector(JobMember& job, const Membership& ranks, HostCollectives& host,
                        const FirstFailure& failure)
      : job_(job), ranks_(ranks), host_(host), failure_(failure) {}
  MaybeFailure check();

 private:
  bool has_finished(const Failure& found) const;

  JobMember& job_;
  const Membership& ranks_;
  HostCollectives& host_;
  const FirstFailure& failure_;
  std::mutex mutex_;
  // Not the communicator's, because threads outside the operation check it.
  std::unique_ptr<FailureDetector> detector_;
  // When a rank was first seen to have left. Guarded by mutex_, like detector_.
  std::optional<std::chrono::steady_clock::time_point> left_at_;
};

// State that a broken world passes on to the world of its survivors.
struct InheritedDeviceState {
  std::unique_ptr<nccl::RevokedHandle> revoked;  // Null if nothing was kept.
  std::string key;                               // The same on all ranks of that world.
  std::vector<Member> members;

  // Returns null unless `survivors` are some, but not all, of its ranks.
  std::shared_ptr<nccl::Parent> parent_for(const Membership& survivors) &&;
};

// Checks that a stream belongs to its operation's device. Thread: any.
class DeviceStreams {
 public:
  // `is_prepared` means that the communicator's device is final. A known stream is then not queried
  // again: it stays on its device, and if a stream of another device gets its address later, the
  // driver rejects work that is put on it.
  bool has(const nccl::Driver& driver, const nccl::DeviceOperation& operation, bool is_prepared) {
    const nccl::Stream stream = operation.stream;
    if (is_prepared && stream != nullptr && stream == last_.load()) return true;
    if (!driver.is_of_device(stream, operation.device)) return false;
    if (is_prepared) last_ = stream;
    return true;
  }

 private:
  std::atomic<nccl::Stream> last_{nullptr};
};

// The stream of asynchronous operations. Thread: any.
class SideStream {
 public:
  SideStream() = default;
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Moves the operation from the caller's stream to this one, where it starts after the work that
  // is now on the caller's stream.
  Result<void> give(nccl::DeviceOperation& operation);

 private:
  std::mutex mutex_;
  nccl::Stream stream_ = nullptr;  // Guarded by mutex_.
  int device_ = 0;                 // The device of stream_. Guarded by mutex_.
};

// Shows enqueued operations in the status page. Thread: the one that watches the device.
class DeviceDisplay {
 public:
  DeviceDisplay(JobMember& job, const Membership& ranks) : job_(job), ranks_(ranks) {}
  // Shows the operation that the device runs or, if null, the last one that was called.
  void show(const nccl::Enqueued* oldest, const DeviceCheck::LastOperation& last);

 private:
  JobMember& job_;
  const Membership& ranks_;
  std::optional<OperationDisplay> display_;  // Set from the first operation on.
  OperationShape displayed_;
  std::uint64_t number_ = 0;
  bool is_running_ = false;
};

}  // namespace ivy::comm
