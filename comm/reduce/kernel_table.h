// SPDX-License-Identifier: Apache-2.0
// Between reduce.cc and the kernels of each instruction set: which function reduces what. Tests and
// benchmarks use it to run an instruction set of their choice; everybody else calls
// comm/reduce/reduce.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/reduce/reduction.h"

namespace ivy::comm {

// From the least to the best; a machine has either kNeon or the two AVXs.
enum class InstructionSet : std::uint8_t { kScalar, kNeon, kAvx2, kAvx512 };

// Arguments of one kernel; type, operation and forms are fixed by the choice of the kernel.
struct KernelCall {
  const void* const* inputs = nullptr;
  std::size_t input_count = 0;
  void* output = nullptr;
  void* second_output = nullptr;  // Null if there is no second one.
  std::size_t count = 0;          // In lanes: a complex element is two.
  const double* factors = nullptr;
  std::uint32_t divisor = 1;
  bool streaming = false;
  // Done beside the reduction and past the caches, by every kernel but the averages of integers:
  // each is of as many bytes as the output, which begins a cache line as every `to` does.
  const Copy* copies = nullptr;
  std::size_t copy_count = 0;
};
using Kernel = void (*)(const KernelCall& call);

// Kernels of one instruction set. `find` returns null for a missing one: the scalar kernel is used
// then.
struct KernelSet {
  Kernel (*find)(Dtype dtype, ReduceOp op, Form input_form, Form output_form);
  void (*copy_streaming)(void* to, const void* from, std::size_t bytes);
};

extern const KernelSet kScalarKernels;
extern const KernelSet kNeonKernels;  // Linked on aarch64 only.
extern const KernelSet kAvx2Kernels;  // Linked on x86-64 only, as the next is.
extern const KernelSet kAvx512Kernels;

struct KernelTable {
  const char* name = nullptr;
  KernelSet set = {};
  Kernel kernels[kDtypeCount][kReduceOpCount][2][2] =
      {};  // [input form][output form]; null: not supported.
};

// The table of one instruction set, built at the first call; null where this machine cannot run it.
// Any thread.
const KernelTable* kernel_table(InstructionSet instruction_set);

// Returns the kernel for a reduction (precondition: is_reducible), and its arguments.
Kernel kernel_of(const KernelTable& table, const Reduction& reduction);
KernelCall call_of(const Reduction& reduction, const Operands& operands);

// The functions of reduce.h with the kernels of one table.
void reduce_with(const KernelTable& table, const Reduction& reduction, const Operands& operands);
void reduce_beside_with(const KernelTable& table, const Reduction& reduction,
                        const Operands& operands, std::span<const Copy> copies);
void copy_with(const KernelTable& table, const Copy& copied, Stores stores);

}  // namespace ivy::comm
