// SPDX-License-Identifier: Apache-2.0
// The handle of a broken communicator: it is aborted, or, if a rank died and the survivors may
// continue, revoked and kept. NCCL then shrinks it to the communicator of the survivors
// (ncclCommShrink, 2.27; ncclCommRevoke, 2.29), which takes less time than a new one.
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

inline constexpr std::chrono::seconds kAbortTimeout{5};

struct FailedCommunicator {
  Handle handle = nullptr;
  const Functions* functions = nullptr;
  const Driver* driver = nullptr;
  int device = 0;
  std::shared_ptr<RegisteredRegions> regions;
  // Memory that NCCL's threads write to until the handle is destroyed.
  std::vector<std::shared_ptr<void>> kept;
};

// Aborts the handle and waits for that. Returns a text if the process is tainted, for example
// because the abort did not return within kAbortTimeout.
std::optional<std::string> abort_failed(const FailedCommunicator& broken);

// A handle that was revoked. The destructor aborts it.
class RevokedHandle {
 public:
  // Returns null if NCCL has no ncclCommRevoke or the call failed; if the handle still reports an
  // error, which would prevent a shrink; or if the call did not return in time, which taints the
  // process.
  static std::unique_ptr<RevokedHandle> revoke(const FailedCommunicator& broken);
  ~RevokedHandle() { static_cast<void>(abort_failed(broken_)); }
  RevokedHandle(const RevokedHandle&) = delete;
  RevokedHandle& operator=(const RevokedHandle&) = delete;
  const FailedCommunicator& get() const { return broken_; }

 private:
  explicit RevokedHandle(FailedCommunicator broken) : broken_(std::move(broken)) {}
  const FailedCommunicator broken_;
};

// A broken communicator of the previous world, in which a rank died. A new one is shrunk from it.
struct Parent {
  std::unique_ptr<RevokedHandle> revoked;
  std::string key;            // Identifies the old communicator; the same on all of its ranks.
  std::vector<int> excluded;  // The old communicator's dead ranks.
};

}  // namespace ivy::comm::nccl
