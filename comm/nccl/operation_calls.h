// SPDX-License-Identifier: Apache-2.0
// Carries out a collective by calls of NCCL, which put it on the stream and do not wait for it.
// Thread: one at a time (DeviceCommunicator::lock_calls()).
#pragma once

#include <string>

#include "comm/nccl/abi.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/operation.h"

namespace ivy::comm::nccl {

// The communicator that calls.
struct Caller {
  const Functions& nccl;
  const Driver& driver;
  Handle handle = nullptr;
  std::int32_t rank = 0;
  std::int32_t size = 1;
};

// The result of a call. `error` is an error of the driver. If it is empty, `status` is NCCL's,
// where kInProgress is not an error.
struct CallResult {
  Status status = kSuccess;
  std::string error;
};

// Starts an operation. If it needs a reduction with this rank's factor, `premul_sum` becomes NCCL's
// number of that reduction, which the caller must free. If the status is kInProgress, wait until
// NCCL is idle before finish_calls(), because NCCL is still launching the kernel on a separate
// thread.
CallResult start_calls(const Caller& caller, const DeviceOperation& operation, int& premul_sum);
// Puts the copy of this rank's own part on the stream, if the operation has one, after NCCL's
// kernel.
CallResult finish_calls(const Caller& caller, const DeviceOperation& operation);

}  // namespace ivy::comm::nccl
