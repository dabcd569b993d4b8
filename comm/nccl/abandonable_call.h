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

// Reasons to stop a wait early. Thread: any.
class TroubleSource {
 public:
  virtual ~TroubleSource() = default;
  // Returns why waiting is pointless, such as the death of a rank; nothing: wait on.
  virtual MaybeFailure trouble() = 0;
};

struct AbandonableCall {
  // Both own all that they touch: they may run long after the caller has given up.
  std::function<void()> call;
  std::function<void()> late;  // Called after `call` if it was abandoned. May be empty.
  std::string what;            // "cuInit", for the text of a failure.
  std::chrono::steady_clock::time_point deadline;
  TroubleSource* source = nullptr;  // Also ends the wait. May be null.
};

// Returns nothing if the call has returned, else why it was abandoned.
MaybeFailure call_abandonable(AbandonableCall abandonable);

// Returns the call that never returned, with advice; nothing if all calls have returned.
std::optional<std::string> taint();
inline bool is_tainted() { return taint().has_value(); }
// Taints the process for ever: an abort has not returned in time.
void set_tainted(const std::string& why);

}  // namespace ivy::comm::nccl
