// SPDX-License-Identifier: Apache-2.0
// The handle of a communicator that is broken: it is aborted, or, where a death has broken it and
// the survivors may go on, revoked and kept. From what is kept NCCL makes the communicator of the
// survivors (ncclCommShrink, 2.27; ncclCommRevoke, 2.29), which takes less than a new one.
//
// Thread: any.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/nccl/abi.h"
#include "comm/nccl/device_regions.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

inline constexpr std::chrono::seconds kAbortPatience{5};

struct FailedCommunicator {
  Handle handle = nullptr;
  const Functions* functions = nullptr;
  const Driver* driver = nullptr;
  int device = 0;
  std::shared_ptr<RegisteredRegions> regions;
  // Memory that NCCL's threads write to until the handle is destroyed.
  std::vector<std::shared_ptr<void>> kept;
};

// Returns when it has ended, at the latest after kAbortPatience; then the process is tainted, and
// the text says so.
std::optional<std::string> abort_failed(const FailedCommunicator& broken);

// A handle that was revoked. Aborted when this ends.
class RevokedHandle {
 public:
  // Null: NCCL has no such function, or it has failed, or the handle still reports an error, with
  // which nothing can be made from it; or it has not returned in time, which taints the process.
  static std::unique_ptr<RevokedHandle> revoke(const FailedCommunicator& broken);
  ~RevokedHandle() { static_cast<void>(abort_failed(broken_)); }
  RevokedHandle(const RevokedHandle&) = delete;
  RevokedHandle& operator=(const RevokedHandle&) = delete;
  const FailedCommunicator& get() const { return broken_; }

 private:
  explicit RevokedHandle(FailedCommunicator broken) : broken_(std::move(broken)) {}
  const FailedCommunicator broken_;
};

// From which a communicator is made: the one of the world before it, which a death has broken.
struct Parent {
  std::unique_ptr<RevokedHandle> revoked;
  std::string key;            // The same on all ranks that have a part of the same one.
  std::vector<int> excluded;  // Numbers of its ranks that are gone.
};

}  // namespace ivy::comm::nccl
