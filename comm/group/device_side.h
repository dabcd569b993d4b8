// What a communicator has for operations on device memory: made at the first of them.
//
// Thread: any; the mutex guards what is named under it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/apart.h"
#include "comm/nccl/communicator.h"
#include "comm/transports/alarm.h"

namespace ivy::comm {

struct DeviceSide {
  DeviceSide() = default;
  ~DeviceSide() {
    nccl.reset();
    if (stream == nullptr || nccl::is_tainted()) return;
    const nccl::Driver* const driver = nccl::Driver::in_use();
    const nccl::Driver::Current current(*driver, stream_device);
    driver->free_stream(stream);
  }
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  std::mutex alarm_mutex;
  std::unique_ptr<Alarm> alarm;  // A separate alarm, because threads outside the operation ask it.

  // When a rank was first seen to have left; guarded by alarm_mutex.
  std::optional<std::chrono::steady_clock::time_point> left_at;

  // True once a call has returned why the communicator is broken.
  std::atomic<bool> is_told{false};

  std::mutex mutex;
  nccl::Stream stream = nullptr;  // For asynchronous operations.
  int stream_device = 0;
  // Made and used in the communicator's turn; the pointer is read under `mutex` elsewhere.
  std::unique_ptr<nccl::DeviceCommunicator> nccl;
};

}  // namespace ivy::comm
