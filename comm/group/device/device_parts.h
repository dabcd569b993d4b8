// SPDX-License-Identifier: Apache-2.0
// Parts of DeviceBackend besides NCCL: the failure check for threads outside an operation, the
// stream of works, and the display on the status page.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group/core/first_failure.h"
#include "comm/group/core/host_collectives.h"
#include "comm/group/core/membership.h"
#include "comm/group/core/operation_display.h"
#include "comm/group/device/device_check.h"
#include "comm/group/world/job.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/failed_communicator.h"
#include "comm/nccl/operation.h"
#include "comm/transports/liveness/failure_detector.h"

namespace ivy::comm {

// Finds out why an operation on the device will not finish. Thread: any.
class DeviceFailureDetector {
 public:
  // The detector keeps references to all of them.
  DeviceFailureDetector(Job& job, const Membership& ranks, HostCollectives& host,
                        const FirstFailure& failure)
      : job_(job), ranks_(ranks), host_(host), failure_(failure) {}
  MaybeFailure check();

 private:
  bool has_ended_well(const Failure& found) const;

  Job& job_;
  const Membership& ranks_;
  HostCollectives& host_;
  const FirstFailure& failure_;
  std::mutex mutex_;
  std::unique_ptr<FailureDetector>
      detector_;  // A separate detector: threads outside the operation check it, too.
  // When a rank was first seen to have left; guarded by mutex_, as detector_.
  std::optional<std::chrono::steady_clock::time_point> left_at_;
};

// State that a broken world passes on to the world of its survivors.
struct DeviceHeritage {
  std::unique_ptr<nccl::RevokedHandle> revoked;  // Null where nothing was kept.
  std::string key;                               // The same on all ranks of that world.
  std::vector<Member> members;

  // Null: `heirs` are not some of its ranks, or are all of them.
  std::shared_ptr<nccl::Parent> for_heirs(const Membership& heirs) &&;
};

// Checks that a stream belongs to its operation's device. Thread: any.
class DeviceStreams {
 public:
  // `is_prepared`: the communicator's device is final. Then a known stream is not queried again: it
  // stays on its device, and if a stream of another device gets its address later, the driver
  // rejects what is put on it.
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

  // Enqueues the operation after the work that is now on the caller's stream.
  Result<void> give(nccl::DeviceOperation& operation);

 private:
  std::mutex mutex_;
  nccl::Stream stream_ = nullptr;  // Guarded by mutex_, as the next.
  int device_ = 0;
};

// Shows enqueued operations in the status page. Thread: the one that watches the device.
class DeviceDisplay {
 public:
  DeviceDisplay(Job& job, const Membership& ranks) : job_(job), ranks_(ranks) {}
  // Shows the operation that the device runs, or if that is null, the last one that was called.
  void show(const nccl::Enqueued* oldest, const DeviceCheck::LastOperation& last);

 private:
  Job& job_;
  const Membership& ranks_;
  std::optional<OperationDisplay> display_;  // From the first operation on.
  OperationShape shown_;
  std::uint64_t number_ = 0;
  bool is_running_ = false;
};

}  // namespace ivy::comm
