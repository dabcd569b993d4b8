// One collective on device memory: its values, and where it runs.
#pragma once

#include "comm/collectives/collective.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

struct DeviceOperation {
  Collective collective;
  int device = 0;
  Stream stream = nullptr;
  bool is_enqueued = false;  // The call returns when it is on the stream, not when it is done.
};

}  // namespace ivy::comm::nccl
