// SPDX-License-Identifier: Apache-2.0
// The kernels for every machine, without special instructions. Vectors of 16 bytes still yield the
// best code; the compiler splits them if the machine has none. Averages of integers are here for
// all instruction sets.
#include <cstring>

#include "comm/reduce/kernel_choice.h"

namespace ivy::comm {
namespace {

struct Scalar {
  static constexpr std::size_t kBytes = 16;
  static constexpr bool kFewInputs = false;

  static IVY_INLINE Vector<float, 16> widen_f16(Vector<std::uint16_t, 8> half) {
    return F16Codec::widen(__builtin_convertvector(half, Vector<std::uint32_t, 16>));
  }
  static IVY_INLINE Vector<std::uint16_t, 8> narrow_f16(Vector<float, 16> value) {
    return __builtin_convertvector(F16Codec::narrow(value), Vector<std::uint16_t, 8>);
  }

  template <class Word>
  static IVY_INLINE void store_streaming(std::byte* to, Word word) {
    store(to, word);
  }
  static IVY_INLINE void fence() {}

  static IVY_INLINE void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
    __builtin_memcpy(to, from, bytes);
  }
};

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UnsignedInt128;

template <class T>
struct WideOf {
  using type = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
};
template <>
struct WideOf<std::int64_t> {
  using type = Int128;
};
template <>
struct WideOf<std::uint64_t> {
  using type = UnsignedInt128;
};

template <class T>
T element_at(const void* elements, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(elements) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put_element(void* elements, std::size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(elements) + index * sizeof(T), &value, sizeof(T));
}

// Element by element, because the division takes longer than everything else.
template <class T, class In, class Out>
void average(const KernelCall& call) {
  using Wide = typename WideOf<T>::type;
  for (std::size_t i = 0; i < call.count; ++i) {
    Wide sum = element_at<In>(call.inputs[0], i);
    for (std::size_t j = 1; j < call.input_count; ++j) sum += element_at<In>(call.inputs[j], i);
    if constexpr (sizeof(Out) == sizeof(T)) sum /= call.divisor;
    put_element(call.output, i, static_cast<Out>(sum));
    if (call.second_output != nullptr) put_element(call.second_output, i, static_cast<Out>(sum));
  }
}

template <class T>
Kernel find_average(Form input_form, Form output_form) {
  using Wide = typename WideOf<T>::type;
  if (input_form == Form::kElement) {
    return output_form == Form::kElement ? average<T, T, T> : average<T, T, Wide>;
  }
  return output_form == Form::kElement ? average<T, Wide, T> : average<T, Wide, Wide>;
}

Kernel find_scalar(Dtype dtype, ReduceOp op, Form input_form, Form output_form) {
  if (op != ReduceOp::kAvg) return find<Scalar>(dtype, op, input_form, output_form);
  switch (dtype) {
    case Dtype::kI8:
      return find_average<std::int8_t>(input_form, output_form);
    case Dtype::kU8:
      return find_average<std::uint8_t>(input_form, output_form);
    case Dtype::kI16:
      return find_average<std::int16_t>(input_form, output_form);
    case Dtype::kU16:
      return find_average<std::uint16_t>(input_form, output_form);
    case Dtype::kI32:
      return find_average<std::int32_t>(input_form, output_form);
    case Dtype::kU32:
      return find_average<std::uint32_t>(input_form, output_form);
    case Dtype::kI64:
      return find_average<std::int64_t>(input_form, output_form);
    case Dtype::kU64:
      return find_average<std::uint64_t>(input_form, output_form);
    default:
      return find<Scalar>(dtype, op, input_form, output_form);
  }
}

}  // namespace

constexpr KernelSet kScalarKernelsValue = {.find = find_scalar,
                                           .copy_streaming = copy_streaming_with<Scalar>};
const KernelSet kScalarKernels = kScalarKernelsValue;

}  // namespace ivy::comm
