// SPDX-License-Identifier: Apache-2.0
// A collective as a value: the checked arguments of the call. ivycomm.h defines each operation.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/collectives/blocks.h"
#include "comm/contract/fingerprint.h"

namespace ivy::comm {

// A buffer with this rank's bytes, or with a block for each rank. If only the root has such a
// buffer, it is unset on the other ranks.
template <class Memory>
struct Side {
  Memory* data = nullptr;
  std::size_t bytes = 0;
  Blocks blocks;
};

// One of several all_reduces that form one operation.
struct Part {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
};

// An operation is in place if `send` is `receive`, or this rank's part of it. A broadcast's buffer
// is `receive`.
struct Collective {
  OperationShape shape;
  Side<const void> send;
  Side<void> receive;
  double factor = 1;        // PREMUL_SUM multiplies its inputs by it.
  std::vector<Part> parts;  // Only if shape.has_parts is set; then no buffer is set.
};

}  // namespace ivy::comm
