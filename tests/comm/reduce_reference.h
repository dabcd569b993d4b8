// SPDX-License-Identifier: Apache-2.0
// A plain reference for reductions, one element at a time. Small floating point formats use a
// sorted table of all their values. It shares no code with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/reduce/reduce.h"

namespace ivy::comm {

using Bytes = std::vector<std::uint8_t>;

// Converts one code of f16, bf16 or fp8 to a number, and a number to the nearest code.
float decode_small(Dtype dtype, std::uint32_t code);
std::uint32_t encode_small(Dtype dtype, float value);

// Returns the bytes per element of inputs or outputs.
std::size_t form_bytes(Dtype dtype, ReduceOp op, Form form);

// Returns the first `count` results of `reduction` over the inputs.
Bytes reference_reduce(const Reduction& reduction, const std::vector<Bytes>& inputs,
                       std::size_t count);

// Returns ordinary values, arbitrary bits, zeros of both signs, infinities, NaN and the limits of
// the range.
Bytes interesting_elements(Dtype dtype, ReduceOp op, Form form, std::size_t count,
                           std::uint32_t seed);

}  // namespace ivy::comm
