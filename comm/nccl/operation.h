// One collective on device memory: its values, and where it runs.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/collectives/collective.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/stream_mark.h"

namespace ivy::comm::nccl {

struct DeviceOperation {
  Collective collective;
  int device = 0;
  Stream stream = nullptr;
  bool is_enqueued = false;  // The call returns when it is on the stream, not when it is done.
  std::uint64_t number = 0;  // Among those that go ahead; 0: the ranks meet for it.
  bool is_captured = false;  // Its stream is being captured into a graph.
  // An operation on a stream of its own begins behind this; null: its stream is the caller's.
  std::shared_ptr<StreamMark> after;
};

}  // namespace ivy::comm::nccl
