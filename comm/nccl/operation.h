// SPDX-License-Identifier: Apache-2.0
// One collective on device memory: its arguments and its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/collectives/collective.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/stream_mark.h"

namespace ivy::comm::nccl {

// A message between two ranks. It is ordered with the ranks' other operations on devices.
struct Transfer {
  void* data = nullptr;  // Null if the operation is a collective.
  std::size_t bytes = 0;
  std::int32_t peer = -1;
  bool is_send = false;
};

struct DeviceOperation {
  // For a message, only `collective.shape` is set, and its root is the peer.
  Collective collective;
  Transfer transfer = {};
  bool is_message() const {
    return collective.shape.operation == comm_status::Operation::kSend ||
           collective.shape.operation == comm_status::Operation::kReceive;
  }
  int device = 0;
  Stream stream = nullptr;
  // The call returns when the operation is on the stream, not when it is done.
  bool is_enqueued = false;
  // Number among the operations for which the ranks do not synchronize; 0 for the others.
  std::uint64_t number = 0;
  bool is_captured = false;  // Its stream is being captured into a graph.
  // The mark after which an asynchronous operation starts, which runs on a separate stream. Null if
  // the operation runs on the caller's stream.
  std::shared_ptr<StreamMark> after = {};
};

}  // namespace ivy::comm::nccl
