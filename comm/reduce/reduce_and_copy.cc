// SPDX-License-Identifier: Apache-2.0
// A reduction combined with copies; see reduce_and_copy() in reduce.h.
#include <algorithm>

#include "comm/reduce/kernel_table.h"
#include "comm/reduce/reduce.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kCacheLine = 64;
// Limit of inputs and of copies. More inputs already have enough streams for the prefetchers.
constexpr std::size_t kInputsMax = 16;

std::size_t to_line(const void* address) {
  return -reinterpret_cast<std::uintptr_t>(address) % kCacheLine;
}

std::byte* moved(void* address, std::size_t bytes) {
  return static_cast<std::byte*>(address) + bytes;
}
const std::byte* moved(const void* address, std::size_t bytes) {
  return static_cast<const std::byte*>(address) + bytes;
}

// The elements that are combined with all copies: from the output's first whole cache line to the
// end of the shortest copy.
struct Common {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Common common_of(const Operands& operands, std::size_t element, std::span<const Copy> copies) {
  const std::size_t first = to_line(operands.output);
  if (copies.empty() || copies.size() >= kInputsMax || first % element != 0) return {};
  Common common = {first / element, operands.count};
  for (const Copy& copied : copies) {
    if (to_line(copied.to) != first) return {};
    common.end = std::min(common.end, copied.bytes / element);
  }
  return common.begin < common.end ? common : Common();
}

Copy part_of(const Copy& whole, std::size_t begin, std::size_t end) {
  return {moved(whole.to, begin), moved(whole.from, begin), end - begin};
}

// Used if the copies cannot be combined with the reduction, usually because of their alignment.
void reduce_then_copy(const KernelTable& table, const Reduction& streaming,
                      const Operands& operands, std::span<const Copy> copies) {
  reduce_with(table, streaming, operands);
  for (const Copy& copied : copies) copy_with(table, copied, Stores::kStreaming);
}

// Parts of a reduction: the elements [begin, end) of all its operands.
class ReductionParts {
 public:
  ReductionParts(const KernelTable& table, const Reduction& reduction, const Operands& whole)
      : kernel_(kernel_of(table, reduction)), reduction_(reduction), whole_(whole) {}

  void reduce(const Common& part, std::span<const Copy> beside = {}) {
    if (part.begin == part.end) return;
    const std::size_t output_element = element_bytes(reduction_.dtype);
    const std::size_t input_element = reduction_.input_form == Form::kElement
                                          ? output_element
                                          : partial_bytes(reduction_.dtype, reduction_.op);
    for (std::size_t j = 0; j < whole_.input_count; ++j) {
      inputs_[j] = moved(whole_.inputs[j], part.begin * input_element);
    }
    Operands operands = {inputs_, whole_.input_count,
                         moved(whole_.output, part.begin * output_element), nullptr,
                         part.end - part.begin};
    if (whole_.second_output != nullptr) {
      operands.second_output = moved(whole_.second_output, part.begin * output_element);
    }
    KernelCall call = call_of(reduction_, operands);
    call.copies = beside.data();
    call.copy_count = beside.size();
    kernel_(call);
  }

 private:
  const Kernel kernel_;
  const Reduction& reduction_;
  const Operands& whole_;
  const void* inputs_[kInputsMax];
};

}  // namespace

void reduce_and_copy_with(const KernelTable& table, const Reduction& reduction,
                          const Operands& operands, std::span<const Copy> copies) {
  Reduction streaming = reduction;
  streaming.stores = Stores::kStreaming;
  const std::size_t element = element_bytes(reduction.dtype);
  // The average of integers has a separate loop, which divides and never waits for memory.
  const bool is_division = reduction.op == ReduceOp::kAvg && reduction.dtype <= Dtype::kU64;
  const bool is_with_copies =
      operands.input_count <= kInputsMax && reduction.output_form == Form::kElement && !is_division;
  const Common common = is_with_copies ? common_of(operands, element, copies) : Common();
  if (common.end == 0) return reduce_then_copy(table, streaming, operands, copies);
  const std::size_t begin = common.begin * element;
  const std::size_t end = common.end * element;
  ReductionParts parts(table, streaming, operands);
  parts.reduce({0, common.begin});
  Copy beside[kInputsMax];
  for (std::size_t c = 0; c < copies.size(); ++c) {
    beside[c] = part_of(copies[c], begin, end);
    copy_with(table, part_of(copies[c], 0, begin), Stores::kCached);
  }
  parts.reduce(common, {beside, copies.size()});
  parts.reduce({common.end, operands.count});
  for (const Copy& copied : copies) {
    copy_with(table, part_of(copied, end, copied.bytes), Stores::kStreaming);
  }
}

}  // namespace ivy::comm
