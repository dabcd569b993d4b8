// One collective on device memory, as values: what the caller gave, checked.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/collectives/shared_collectives.h"
#include "comm/contract/fingerprint.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

// What a reduction works on; only all_reduce has more than one.
struct Part {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  // Elements.
};

struct DeviceOperation {
  OperationShape shape;
  double factor = 1;  // PREMUL_SUM.

  // all_reduce, reduce, scan.
  std::vector<Part> parts;
  // All others. Blocks are bytes; empty where a root alone has them.
  const void* send = nullptr;
  void* receive = nullptr;
  std::vector<std::size_t> counts;  // reduce_scatter: elements of each rank.
  std::vector<Block> send_blocks;
  std::vector<Block> receive_blocks;
  std::size_t send_bytes = 0;     // gather: this rank's.
  std::size_t receive_bytes = 0;  // scatter, broadcast.

  int device = 0;
  Stream stream = nullptr;
  bool is_enqueued = false;  // The call returns when it is on the stream, not when it is done.
};

}  // namespace ivy::comm::nccl
