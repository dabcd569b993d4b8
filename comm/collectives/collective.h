// SPDX-License-Identifier: Apache-2.0
// One collective as values: what the caller gave, checked. ivycomm.h says what each operation does.
//
// A value; thread: any.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/collectives/blocks.h"
#include "comm/contract/fingerprint.h"

namespace ivy::comm {

// A buffer: this rank's bytes, or a block for each rank. Both are unset where only a root has it.
template <class Memory>
struct Side {
  Memory* data = nullptr;
  std::size_t bytes = 0;
  Blocks blocks;
};

// One of several all_reduces that are one operation.
struct Part {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
};

// An operation is in place where `send` is `receive`, or this rank's part of it. A broadcast's
// buffer is `receive`.
struct Collective {
  OperationShape shape;
  Side<const void> send;
  Side<void> receive;
  double factor = 1;        // PREMUL_SUM multiplies its inputs by it.
  std::vector<Part> parts;  // Only where shape.has_parts; then no buffer is set.
};

}  // namespace ivy::comm
