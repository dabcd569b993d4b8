// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic of the test double, for one element type and operation at a time.
#pragma once

#include <cstddef>

namespace nccl_double {

// Types and operations are numbered like ncclDataType_t and ncclRedOp_t.
std::size_t element_bytes(int type);
// Computes into = op(into, from) for each element. The caller copies the first input.
void combine(int type, int op, char* into, const char* from, std::size_t bytes);
// Computes into *= factor, for floating point.
void scale(int type, double factor, char* into, std::size_t bytes);

}  // namespace nccl_double
