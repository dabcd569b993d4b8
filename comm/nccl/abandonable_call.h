// SPDX-License-Identifier: Apache-2.0
// Calls into the driver and NCCL that may never return: each runs on its own thread, so that its
// caller can give up. An abandoned thread keeps running and holds the objects of its call. As long
// as there is one, the process is tainted and must not start to use NCCL again.
//
// Thread: any.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "comm/contract/failure.h"

namespace ivy::comm::nccl {

// Reasons to stop a wait early. Thread: any. Implemented by BootstrapOwner.
class FailureSource {
 public:
  virtual ~FailureSource() = default;
  // Returns why waiting is pointless, such as the death of a rank, or nothing to keep waiting.
  virtual MaybeFailure find_failure() = 0;
};

struct AbandonableCall {
  // `call` and `late` must own everything that they use, because they may run long after the caller
  // has given up.
  std::function<void()> call;
  std::function<void()> late;  // Called after `call` if it was abandoned. May be empty.
  std::string what;            // Names the call in the text of a failure, such as "cuInit".
  std::chrono::steady_clock::time_point deadline;
  FailureSource* source = nullptr;  // A failure ends the wait early. May be null.
};

// Makes the call on a new thread and waits for it. Returns nothing if it has returned, or the
// reason why it was abandoned.
MaybeFailure call_abandonable(AbandonableCall abandonable);

// Returns the name of the oldest call that has not returned, with advice, or nothing if the process
// is not tainted.
std::optional<std::string> taint();
inline bool is_tainted() { return taint().has_value(); }
// Taints the process for the rest of its life. Used if an abort did not return in time.
void set_tainted(const std::string& why);

}  // namespace ivy::comm::nccl
