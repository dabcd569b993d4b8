// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce/reduce.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "comm/reduce/kernel_table.h"
#include "proto/contract/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ivy::comm {
namespace {

bool is_complex(Dtype dtype) { return dtype == Dtype::kC64 || dtype == Dtype::kC128; }

bool is_small_float(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 || dtype == Dtype::kF8E4m3 ||
         dtype == Dtype::kF8E5m2;
}

bool is_integer(Dtype dtype) { return dtype <= Dtype::kU64; }

#if defined(__x86_64__)
bool machine_has_f16c() {
  // Clang 14's __builtin_cpu_supports does not support "f16c".
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool machine_runs(InstructionSet instruction_set) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && machine_has_f16c();
  switch (instruction_set) {
    case InstructionSet::kScalar:
      return true;
    case InstructionSet::kNeon:
      return false;
    case InstructionSet::kAvx2:
      return avx2;
    case InstructionSet::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return false;
}
#elif defined(__aarch64__)
bool machine_runs(InstructionSet instruction_set) {
  return instruction_set == InstructionSet::kScalar || instruction_set == InstructionSet::kNeon;
}
#else
bool machine_runs(InstructionSet instruction_set) {
  return instruction_set == InstructionSet::kScalar;
}
#endif

struct InstructionSetRow {
  const char* name;
  const KernelSet* kernels;  // Null if this build does not have them.
};

// In the order of InstructionSet.
constexpr InstructionSetRow kInstructionSets[] = {
    {"scalar", &kScalarKernels},
#if defined(__aarch64__)
    {"neon", &kNeonKernels},
#else
    {"neon", nullptr},
#endif
#if defined(__x86_64__)
    {"avx2", &kAvx2Kernels},
    {"avx512", &kAvx512Kernels},
#else
    {"avx2", nullptr},
    {"avx512", nullptr},
#endif
};

KernelTable make_table(const InstructionSetRow& row) {
  KernelTable table;
  table.name = row.name;
  table.set = *row.kernels;
  for (std::uint8_t type = 0; type < kDtypeCount; ++type) {
    for (std::uint8_t operation = 0; operation < kReduceOpCount; ++operation) {
      const auto dtype = static_cast<Dtype>(type);
      const auto op = static_cast<ReduceOp>(operation);
      if (!is_reducible(dtype, op)) continue;
      for (const Form from : {Form::kElement, Form::kPartial}) {
        for (const Form to : {Form::kElement, Form::kPartial}) {
          const Kernel own = row.kernels->find(dtype, op, from, to);
          table.kernels[type][operation][static_cast<std::size_t>(from)]
                       [static_cast<std::size_t>(to)] =
              own != nullptr ? own : kScalarKernels.find(dtype, op, from, to);
        }
      }
    }
  }
  return table;
}

template <InstructionSet instruction_set>
const KernelTable* table_of() {
  const InstructionSetRow& row = kInstructionSets[static_cast<std::size_t>(instruction_set)];
  if (row.kernels == nullptr || !machine_runs(instruction_set)) return nullptr;
  static const KernelTable table = make_table(row);
  return &table;
}

const KernelTable& choose_table() {
  auto last = std::size(kInstructionSets) - 1;
  if (const char* const wish = std::getenv("IVY_KERNELS")) {
    // An unknown name has no effect; kernel_name() returns the instruction set in use.
    for (std::size_t i = 0; i < std::size(kInstructionSets); ++i) {
      if (std::string_view(wish) == kInstructionSets[i].name) last = i;
    }
  }
  for (std::size_t i = last; i > 0; --i) {
    if (const KernelTable* const table = kernel_table(static_cast<InstructionSet>(i))) {
      return *table;
    }
  }
  return *kernel_table(InstructionSet::kScalar);
}

const KernelTable& chosen_table() {
  static const KernelTable& table = choose_table();
  return table;
}

}  // namespace

const KernelTable* kernel_table(InstructionSet instruction_set) {
  switch (instruction_set) {
    case InstructionSet::kScalar:
      return table_of<InstructionSet::kScalar>();
    case InstructionSet::kNeon:
      return table_of<InstructionSet::kNeon>();
    case InstructionSet::kAvx2:
      return table_of<InstructionSet::kAvx2>();
    case InstructionSet::kAvx512:
      return table_of<InstructionSet::kAvx512>();
  }
  return nullptr;
}

std::size_t partial_bytes(Dtype dtype, ReduceOp op) {
  const bool rounds = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kProduct ||
                      op == ReduceOp::kPremulSum;
  if (rounds && is_small_float(dtype)) return 4;
  if (op == ReduceOp::kAvg && is_integer(dtype)) return element_bytes(dtype) == 8 ? 16 : 8;
  return element_bytes(dtype);
}

Kernel kernel_of(const KernelTable& table, const Reduction& reduction) {
  return table.kernels[static_cast<std::size_t>(reduction.dtype)][static_cast<std::size_t>(
      reduction.op)][static_cast<std::size_t>(reduction.input_form)]
                      [static_cast<std::size_t>(reduction.output_form)];
}

KernelCall call_of(const Reduction& reduction, const Operands& operands) {
  return {.inputs = operands.inputs,
          .input_count = operands.input_count,
          .output = operands.output,
          .second_output = operands.second_output,
          .count = is_complex(reduction.dtype) ? 2 * operands.count : operands.count,
          .factors = reduction.factors,
          .divisor = reduction.divisor,
          .streaming = reduction.stores == Stores::kStreaming};
}

void reduce_with(const KernelTable& table, const Reduction& reduction, const Operands& operands) {
  IVY_ASSERT(is_reducible(reduction.dtype, reduction.op));
  IVY_ASSERT(operands.input_count >= 1);
  const bool wants_factors =
      reduction.op == ReduceOp::kPremulSum && reduction.input_form == Form::kElement;
  IVY_ASSERT(wants_factors == (reduction.factors != nullptr));
  IVY_ASSERT(reduction.divisor >= 1);
  if (operands.count > 0) kernel_of(table, reduction)(call_of(reduction, operands));
}

void reduce(const Reduction& reduction, const Operands& operands) {
  reduce_with(chosen_table(), reduction, operands);
}

void reduce_and_copy(const Reduction& reduction, const Operands& operands,
                     std::span<const Copy> copies) {
  reduce_and_copy_with(chosen_table(), reduction, operands, copies);
}

void copy_with(const KernelTable& table, const Copy& copied, Stores stores) {
  if (copied.bytes == 0) return;
  if (stores == Stores::kStreaming) {
    table.set.copy_streaming(copied.to, copied.from, copied.bytes);
  } else {
    std::memcpy(copied.to, copied.from, copied.bytes);
  }
}

void copy(void* to, const void* from, std::size_t bytes, Stores stores) {
  copy_with(chosen_table(), {to, from, bytes}, stores);
}

const char* kernel_name() { return chosen_table().name; }

}  // namespace ivy::comm
