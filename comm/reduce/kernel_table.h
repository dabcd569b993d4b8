// SPDX-License-Identifier: Apache-2.0
// Connects reduce.cc with the kernels of each instruction set. Tests and benchmarks use it to run a
// chosen instruction set; other code calls comm/reduce/reduce.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/reduce/reduction.h"

namespace ivy::comm {

// In increasing order of preference; a machine has either kNeon or the two AVXs.
enum class InstructionSet : std::uint8_t { kScalar, kNeon, kAvx2, kAvx512 };

// Arguments of one kernel; type, operation and forms are fixed by the choice of the kernel.
struct KernelCall {
  const void* const* inputs = nullptr;
  std::size_t input_count = 0;
  void* output = nullptr;
  void* second_output = nullptr;  // Null if there is none.
  std::size_t count = 0;          // In lanes: a complex element is two.
  const double* factors = nullptr;
  std::uint32_t divisor = 1;
  bool streaming = false;
  // Copies to do together with the reduction, bypassing the caches; supported by every kernel
  // except averages of integers. Each has as many bytes as the output, and the output and every
  // `to` start at a cache line.
  const Copy* copies = nullptr;
  std::size_t copy_count = 0;
};
using Kernel = void (*)(const KernelCall& call);

// Kernels of one instruction set. `find` returns null for a missing one; the scalar kernel is then
// used.
struct KernelSet {
  Kernel (*find)(Dtype dtype, ReduceOp op, Form input_form, Form output_form);
  void (*copy_streaming)(void* to, const void* from, std::size_t bytes);
};

extern const KernelSet kScalarKernels;
extern const KernelSet kNeonKernels;  // Linked on aarch64 only.
extern const KernelSet kAvx2Kernels;  // kAvx2Kernels and kAvx512Kernels are linked on x86-64 only.
extern const KernelSet kAvx512Kernels;

struct KernelTable {
  const char* name = nullptr;
  KernelSet set = {};
  // The last two indices are the input's form and the output's. Null if not supported.
  Kernel kernels[kDtypeCount][kReduceOpCount][2][2] = {};
};

// Returns the table of one instruction set, built at the first call, or null if this machine cannot
// run it. Any thread.
const KernelTable* kernel_table(InstructionSet instruction_set);

// Returns the kernel for a reduction (precondition: is_reducible), and its arguments.
Kernel kernel_of(const KernelTable& table, const Reduction& reduction);
KernelCall call_of(const Reduction& reduction, const Operands& operands);

// The functions of reduce.h with the kernels of one table.
void reduce_with(const KernelTable& table, const Reduction& reduction, const Operands& operands);
void reduce_and_copy_with(const KernelTable& table, const Reduction& reduction,
                          const Operands& operands, std::span<const Copy> copies);
void copy_with(const KernelTable& table, const Copy& copied, Stores stores);

}  // namespace ivy::comm
