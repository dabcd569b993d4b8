// A reduction with copies beside it; see reduce_beside() in reduce.h.
#include <algorithm>

#include "comm/reduce/kernel_table.h"
#include "comm/reduce/reduce.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kCacheLine = 64;
// With more inputs there are streams enough for the prefetchers.
constexpr std::size_t kInputsMax = 16;

std::size_t to_line(const void* place) {
  return -reinterpret_cast<std::uintptr_t>(place) % kCacheLine;
}

std::byte* moved(void* place, std::size_t bytes) { return static_cast<std::byte*>(place) + bytes; }
const std::byte* moved(const void* place, std::size_t bytes) {
  return static_cast<const std::byte*>(place) + bytes;
}

// The elements that have all copies beside them: from the output's first whole cache line to the
// end of the shortest.
struct Common {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Common common_of(const void* output, std::size_t element, std::size_t count, const Copy* copies,
                 std::size_t copy_count) {
  if (copy_count == 0 || copy_count >= kInputsMax || to_line(output) % element != 0) return {};
  Common common = {to_line(output) / element, count};
  for (std::size_t c = 0; c < copy_count; ++c) {
    if (to_line(copies[c].to) != to_line(output)) return {};
    common.end = std::min(common.end, copies[c].bytes / element);
  }
  return common.begin < common.end ? common : Common();
}

}  // namespace

void reduce_beside_with(const KernelTable& table, const Reduction& reduction,
                        const void* const* inputs, std::size_t input_count, void* output,
                        void* second_output, std::size_t count, const Copy* copies,
                        std::size_t copy_count) {
  Reduction streaming = reduction;
  streaming.stores = Stores::kStreaming;
  const std::size_t element = element_bytes(reduction.dtype);
  // The average of integers is a loop of its own, which divides and never waits for memory.
  const bool is_division = reduction.op == ReduceOp::kAvg && reduction.dtype <= Dtype::kU64;
  const bool is_with_copies =
      input_count <= kInputsMax && reduction.output_form == Form::kElement && !is_division;
  const Common common =
      is_with_copies ? common_of(output, element, count, copies, copy_count) : Common();
  if (common.end == 0) {
    reduce_with(table, streaming, inputs, input_count, output, second_output, count);
    for (std::size_t c = 0; c < copy_count; ++c) {
      copy_with(table, copies[c].to, copies[c].from, copies[c].bytes, Stores::kStreaming);
    }
    return;
  }
  const std::size_t input_element = reduction.input_form == Form::kElement
                                        ? element
                                        : partial_bytes(reduction.dtype, reduction.op);
  const auto call_of_part = [&](std::size_t begin, std::size_t end, const void** from) {
    for (std::size_t j = 0; j < input_count; ++j) {
      from[j] = moved(inputs[j], begin * input_element);
    }
    KernelCall call =
        call_of(streaming, from, input_count, moved(output, begin * element), end - begin);
    if (second_output != nullptr) call.second_output = moved(second_output, begin * element);
    return call;
  };
  const Kernel kernel = kernel_of(table, streaming);
  const void* from[kInputsMax];
  if (common.begin > 0) kernel(call_of_part(0, common.begin, from));
  Copy beside[kInputsMax];
  const std::size_t begin = common.begin * element;
  const std::size_t bytes = common.end * element - begin;
  for (std::size_t c = 0; c < copy_count; ++c) {
    beside[c] = {moved(copies[c].to, begin), moved(copies[c].from, begin), bytes};
    copy_with(table, copies[c].to, copies[c].from, begin, Stores::kCached);
  }
  KernelCall call = call_of_part(common.begin, common.end, from);
  call.copies = beside;
  call.copy_count = copy_count;
  kernel(call);
  if (common.end < count) kernel(call_of_part(common.end, count, from));
  for (std::size_t c = 0; c < copy_count; ++c) {
    copy_with(table, moved(copies[c].to, begin + bytes), moved(copies[c].from, begin + bytes),
              copies[c].bytes - begin - bytes, Stores::kStreaming);
  }
}

}  // namespace ivy::comm
