// SPDX-License-Identifier: Apache-2.0
// Calls into the driver and NCCL that may never return: each is made on a thread of its own, so
// that its caller can give up. A thread that was given up stays, and with it whatever its call
// holds: as long as one does, the process is tainted and may not begin with NCCL again.
//
// Thread: any.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "comm/contract/failure.h"

namespace ivy::comm::nccl {

struct AbandonableCall {
  // Both own all that they touch: they may still run when the caller has long gone.
  std::function<void()> call;
  std::function<void()> late;  // Called after `call` if it was abandoned. May be empty.
  std::string what;            // "cuInit", in the words of a failure.
  std::chrono::steady_clock::time_point deadline;
  std::function<MaybeFailure()> trouble;  // Returns why waiting is in vain.
};

// Nothing: the call has returned. Else it was given up.
MaybeFailure call_abandonable(AbandonableCall apart);

// Returns the call that never returned, with advice; nothing if all calls have returned.
std::optional<std::string> taint();
inline bool is_tainted() { return taint().has_value(); }
// Taints the process for good: an abort has not returned in time.
void set_tainted(const std::string& why);

}  // namespace ivy::comm::nccl
