// SPDX-License-Identifier: Apache-2.0
// Arguments of a reduction. reduce.h has the functions, kernel_table.h the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/reduce/element.h"

namespace ivy::comm {

enum class Stores : std::uint8_t {
  kCached,
  kStreaming,  // Bypasses the caches, for results that exceed them and are not read soon.
};

// Representation of the inputs or the output of one reduction.
enum class Form : std::uint8_t {
  kElement,  // The user's format.
  kPartial,  // The format between two levels of a reduction.
};

struct Reduction {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  Form input_form = Form::kElement;
  Form output_form = Form::kElement;
  // For AVG with output_form kElement: number of elements in each sum, over all levels.
  std::uint32_t divisor = 1;
  // For PREMUL_SUM with input_form kElement: one factor per input (rounded to the accumulator's
  // type; both parts of a complex number are multiplied). Otherwise null.
  const double* factors = nullptr;
  // For `output`; `second_output` is always stored through the caches.
  Stores stores = Stores::kCached;
};

// Sources and destinations of one reduction.
struct Operands {
  const void* const* inputs = nullptr;
  std::size_t input_count = 0;
  void* output = nullptr;
  void* second_output = nullptr;  // Gets the same result, unless it is null.
  std::size_t count = 0;
};

// Bytes to copy, possibly together with a reduction (reduce_and_copy).
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

}  // namespace ivy::comm
