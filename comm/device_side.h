// What a communicator has for operations on device memory: made at the first of them.
//
// Thread: any; the mutex guards what is named under it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/communicator.h"
#include "comm/transports/alarm.h"

namespace ivy::comm {

struct DeviceSide {
  DeviceSide() = default;
  ~DeviceSide() {
    nccl.reset();
    if (stream != nullptr && !nccl::is_tainted()) nccl::Driver::in_use()->free_stream(stream);
  }
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  std::mutex alarm_mutex;
  std::unique_ptr<Alarm> alarm;  // Its own: it is asked by threads outside the operation.

  std::optional<std::chrono::steady_clock::time_point> left_at;  // First seen; also its mutex's.

  std::mutex mutex;
  nccl::Stream stream = nullptr;  // For asynchronous operations.
  // Made and used in the communicator's turn; the pointer is read under `mutex` elsewhere.
  std::unique_ptr<nccl::DeviceCommunicator> nccl;
};

}  // namespace ivy::comm
