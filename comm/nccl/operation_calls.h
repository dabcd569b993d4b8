// SPDX-License-Identifier: Apache-2.0
// A collective as NCCL's calls. Nothing here waits: everything is put on the stream.
// Thread: the communicator's.
#pragma once

#include <string>

#include "comm/nccl/abi.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/operation.h"

namespace ivy::comm::nccl {

struct Caller {
  const Functions& nccl;
  const Driver& driver;
  Handle handle = nullptr;
  std::int32_t rank = 0;
  std::int32_t size = 1;
};

// The result of a call. `error` is the driver's; else `status` is NCCL's (kInProgress is no error).
struct CallResult {
  Status status = kSuccess;
  std::string error;
};

// Starts an operation. Before finish_calls() the communicator must have become idle: NCCL launches
// a group on its own thread.
CallResult start_calls(const Caller& caller, const DeviceOperation& operation, int& premul_sum);
// Puts the rest on the stream, once NCCL has put its part there.
CallResult finish_calls(const Caller& caller, const DeviceOperation& operation);

}  // namespace ivy::comm::nccl
