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

// A message between two ranks, in the order of their other operations on devices.
struct Transfer {
  void* data = nullptr;  // Null: the operation is a collective.
  std::size_t bytes = 0;
  std::int32_t peer = -1;
  bool is_send = false;
};

struct DeviceOperation {
  // A message has only the shape of it, whose root is the peer.
  Collective collective;
  Transfer transfer = {};
  bool is_message() const {
    return collective.shape.operation == comm_status::Operation::kSend ||
           collective.shape.operation == comm_status::Operation::kReceive;
  }
  int device = 0;
  Stream stream = nullptr;
  bool is_enqueued = false;  // The call returns when it is on the stream, not when it is done.
  std::uint64_t number = 0;  // Among those that run ahead; 0: the ranks synchronize for it.
  bool is_captured = false;  // Its stream is being captured into a graph.
  // An operation on a separate stream starts after this; null: it runs on the caller's stream.
  std::shared_ptr<StreamMark> after = {};
};

}  // namespace ivy::comm::nccl
