// SPDX-License-Identifier: Apache-2.0
// Reduction and copy kernels: pure functions over memory, chosen once per process for the machine's
// instruction set (AVX-512, AVX2 with F16C, NEON, scalar).
//
// Rules that every instruction set follows to the bit, so that ranks on unequal machines agree:
// - Inputs are combined in the order in which they are given, element by element; the result is
//   independent of the number of elements, their alignment and the place where a vector is cut.
// - f16, bf16 and fp8 are widened to f32, combined there, and rounded once at the end (to nearest,
//   ties to even; fp8 saturates). f32 and f64 are combined in their own type, without fused
//   multiply-add. Complex products are (ac - bd) + (ad + bc)i, each term rounded by itself.
// - Integers wrap. bool: SUM, MAX and BOR are "or", PRODUCT, MIN and BAND are "and", AVG is "or";
//   results are 0 or 1.
// - MIN and MAX give NaN where any input is NaN; of two zeros MIN takes the negative one, MAX the
// positive one.
// - AVG divides once, at the end: floating point in the accumulator's type, so that the mean of
//   equal values is that value; complex numbers part by part; integers sum in a wider type (64 bit;
//   128 bit for 64-bit elements) and truncate towards zero.
//
// A reduction that is done in two levels (inside each host, then between hosts) keeps its
// intermediate results as partials: of partial_bytes(dtype, op) bytes per element, so that still
// only the last step rounds.
//
// The processor's rounding is to nearest, and subnormal numbers are as the process has them: where
// one rank flushes them to zero and another does not, results of f32, f64 and bf16 differ.
//
// Thread: any. No allocation, no exceptions, no system calls.
#pragma once

#include <cstddef>
#include <span>

#include "comm/reduce/reduction.h"

namespace ivy::comm {

// f16, bf16 and fp8 with SUM, AVG, PRODUCT or PREMUL_SUM: 4 (f32); AVG of 8- to 32-bit integers: 8;
// AVG of 64-bit integers: 16; all else: element_bytes.
std::size_t partial_bytes(Dtype dtype, ReduceOp op);

// output[i] = op over k of inputs[k][i], for i < count. input_count >= 1; with one input this
// converts (and scales, and divides). `output` and `second_output` may each be exactly one of the
// inputs when the forms are equal; no other overlap. Pointers need no alignment. Preconditions
// (asserted): is_reducible, and factors where the operation wants them.
void reduce(const Reduction& reduction, const Operands& operands);

// reduce() combined with copies. Output and copies bypass the caches whatever reduction.stores is.
// They take turns, a block each, so that the reads of both wait for memory at the same time and the
// processor prefetches for all of them. Sources and destinations of the copies must overlap neither
// the inputs nor the outputs.
void reduce_beside(const Reduction& reduction, const Operands& operands,
                   std::span<const Copy> copies);

// Copies as memcpy() does: the two must not overlap.
void copy(void* to, const void* from, std::size_t bytes, Stores stores);

// "avx512", "avx2", "neon" or "scalar". IVY_KERNELS in the environment, read once, chooses a lesser
// one (tests, and machines that throttle); an unknown name chooses nothing.
const char* kernel_name();

}  // namespace ivy::comm
