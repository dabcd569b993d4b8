// SPDX-License-Identifier: Apache-2.0
// Reduction and copy kernels: pure functions over memory, chosen once per process for the machine's
// instruction set (AVX-512, AVX2 with F16C, NEON, scalar).
//
// Every instruction set follows these rules to the bit, so that ranks on different machines agree:
// - Inputs are combined in the order in which they are given, element by element. The result does
//   not depend on the number of elements, their alignment, or the points at which a vector is
//   split.
// - f16, bf16 and fp8 are widened to f32, combined there, and rounded once at the end (to nearest,
//   ties to even; fp8 saturates). f32 and f64 are combined in their own type, without fused
//   multiply-add. Complex products are (ac - bd) + (ad + bc)i, with each term rounded separately.
// - Integers wrap. For bool, SUM, MAX, BOR and AVG are "or", PRODUCT, MIN and BAND are "and";
//   results are 0 or 1.
// - MIN and MAX return NaN if any input is NaN. Of two zeros, MIN returns the negative one and MAX
//   the positive one.
// - AVG divides once, at the end. Floating-point numbers are divided in the accumulator's type, so
//   that the mean of equal values is that value; complex numbers part by part. Integers are summed
//   in a wider type (64 bits, or 128 bits for 64-bit elements) and truncated towards zero.
//
// A reduction in two levels (inside each host, then between hosts) keeps its intermediate results
// as partials of partial_bytes(dtype, op) bytes per element, so that only the last step rounds.
//
// The processor must round to nearest. Subnormal numbers are handled as the process is configured:
// if one rank flushes them to zero and another does not, results of f32, f64 and bf16 differ.
//
// Thread: any. No allocation, no exceptions, no system calls.
#pragma once

#include <cstddef>
#include <span>

#include "comm/reduce/reduction.h"

namespace ivy::comm {

// Returns 4 (f32) for f16, bf16 and fp8 with SUM, AVG, PRODUCT or PREMUL_SUM; 8 for AVG of 8- to
// 32-bit integers; 16 for AVG of 64-bit integers; otherwise element_bytes.
std::size_t partial_bytes(Dtype dtype, ReduceOp op);

// Computes output[i] = op over k of inputs[k][i], for i < count. Requires input_count >= 1; with
// one input this converts (and scales, and divides). `output` and `second_output` may each be
// exactly one of the inputs if the forms are equal; there must be no other overlap. Pointers need
// no alignment. Asserts is_reducible, and factors if the operation needs them.
void reduce(const Reduction& reduction, const Operands& operands);

// Combines reduce() with copies. Output and copies bypass the caches, whatever reduction.stores is.
// They alternate block by block, so that the reads of both wait for memory at the same time and the
// processor prefetches for all of them. Sources and destinations of the copies must not overlap the
// inputs or the outputs.
void reduce_and_copy(const Reduction& reduction, const Operands& operands,
                     std::span<const Copy> copies);

// Copies like memcpy(): the two must not overlap.
void copy(void* to, const void* from, std::size_t bytes, Stores stores);

// Returns "avx512", "avx2", "neon" or "scalar". IVY_KERNELS in the environment, read once, selects
// a lesser one (for tests, and for machines that throttle); an unknown name has no effect.
const char* kernel_name();

}  // namespace ivy::comm
