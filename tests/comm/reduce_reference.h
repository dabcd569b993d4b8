// SPDX-License-Identifier: Apache-2.0
// What a reduction must give, one element at a time and in the plainest way: small floating point
// formats through a sorted table of all their values, nothing shared with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/reduce/reduce.h"

namespace ivy::comm {

using Bytes = std::vector<std::uint8_t>;

// One code of f16, bf16 or fp8 as a number, and a number as the nearest code.
float decode_small(Dtype dtype, std::uint32_t code);
std::uint32_t encode_small(Dtype dtype, float value);

// Bytes per element of inputs or outputs.
std::size_t form_bytes(Dtype dtype, ReduceOp op, Form form);

// The first `count` results of `reduction` over the inputs.
Bytes reference_reduce(const Reduction& reduction, const std::vector<Bytes>& inputs,
                       std::size_t count);

// Values that are worth reducing: ordinary ones, any bits, zeros of both signs, infinities, NaN and
// the edges of the range.
Bytes interesting_elements(Dtype dtype, ReduceOp op, Form form, std::size_t count,
                           std::uint32_t seed);

}  // namespace ivy::comm
