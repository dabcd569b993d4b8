// SPDX-License-Identifier: Apache-2.0
// The stand-in's arithmetic: one element type and operation at a time, plainly.
#pragma once

#include <cstddef>

namespace nccl_double {

// As ncclDataType_t and ncclRedOp_t number them.
std::size_t element_bytes(int type);
// into = op(into, from), element by element; the first one is copied by the caller.
void combine(int type, int op, char* into, const char* from, std::size_t bytes);
// into *= factor, for floating point.
void scale(int type, double factor, char* into, std::size_t bytes);

}  // namespace nccl_double
