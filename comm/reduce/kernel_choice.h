// SPDX-License-Identifier: Apache-2.0
// Selects the loop for each type, operation and form. Included by the file of each instruction set.
// In an unnamed namespace for the reason given in comm/reduce/vectors.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/reduce/kernel_loop.h"

namespace ivy::comm {
namespace {

template <class Isa, class T>
Kernel find_integer(ReduceOp op) {
  // Wrapping is the same for signed and unsigned integers; signed overflow would be undefined.
  using Wrapping = Plain<Isa, std::make_unsigned_t<T>>;
  using Signed = Plain<Isa, T>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_few<KernelSpec<Isa, Wrapping, Wrapping, Sum>>;
    case ReduceOp::kProduct:
      return reduce_any<KernelSpec<Isa, Wrapping, Wrapping, Product>>;
    case ReduceOp::kMin:
      return reduce_any<KernelSpec<Isa, Signed, Signed, Minimum>>;
    case ReduceOp::kMax:
      return reduce_any<KernelSpec<Isa, Signed, Signed, Maximum>>;
    case ReduceOp::kBand:
      return reduce_any<KernelSpec<Isa, Wrapping, Wrapping, And>>;
    case ReduceOp::kBor:
      return reduce_any<KernelSpec<Isa, Wrapping, Wrapping, Or>>;
    case ReduceOp::kBxor:
      return reduce_any<KernelSpec<Isa, Wrapping, Wrapping, Xor>>;
    case ReduceOp::kAvg:  // Only in the scalar file.
    case ReduceOp::kPremulSum:
      return nullptr;
  }
  return nullptr;
}

template <class Isa>
Kernel find_bool(ReduceOp op) {
  switch (row_of(op).on_bool) {
    case OnBool::kAnd:
      return reduce_any<KernelSpec<Isa, Bool<Isa>, Bool<Isa>, And>>;
    case OnBool::kOr:
      return reduce_any<KernelSpec<Isa, Bool<Isa>, Bool<Isa>, Or>>;
    case OnBool::kXor:
      return reduce_any<KernelSpec<Isa, Bool<Isa>, Bool<Isa>, Xor>>;
    case OnBool::kNone:
      return nullptr;
  }
  return nullptr;
}

template <class Isa, class T>
Kernel find_float(ReduceOp op, Form input_form, Form output_form) {
  using P = Plain<Isa, T>;
  const bool factors = op == ReduceOp::kPremulSum && input_form == Form::kElement;
  const bool divides = op == ReduceOp::kAvg && output_form == Form::kElement;
  if (factors) return reduce_any<KernelSpec<Isa, P, P, Sum, Scale::kInputs>>;
  if (divides) return reduce_few<KernelSpec<Isa, P, P, Sum, Scale::kOutput>>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return reduce_few<KernelSpec<Isa, P, P, Sum>>;
    case ReduceOp::kProduct:
      return reduce_any<KernelSpec<Isa, P, P, Product>>;
    case ReduceOp::kMin:
      return reduce_any<KernelSpec<Isa, P, P, Minimum>>;
    case ReduceOp::kMax:
      return reduce_any<KernelSpec<Isa, P, P, Maximum>>;
    default:
      return nullptr;
  }
}

template <class Isa, class T>
Kernel find_complex(ReduceOp op, Form input_form, Form output_form) {
  using P = Plain<Isa, T>;
  if (op == ReduceOp::kProduct) return reduce_any<KernelSpec<Isa, P, P, ComplexProduct>>;
  return find_float<Isa, T>(op, input_form, output_form);
}

// `Small` is used if one side is f32, `Within` if both sides are elements.
template <class Isa, class Small, class Within>
Kernel find_small_float(ReduceOp op, Form input_form, Form output_form) {
  using F32 = Plain<Isa, float>;
  if (op == ReduceOp::kMin) return reduce_any<KernelSpec<Isa, Within, Within, Minimum>>;
  if (op == ReduceOp::kMax) return reduce_any<KernelSpec<Isa, Within, Within, Maximum>>;
  if (input_form == Form::kPartial && output_form == Form::kPartial) {
    return find_float<Isa, float>(op, input_form, output_form);
  }
  const bool from_partial = input_form == Form::kPartial;
  const bool to_partial = output_form == Form::kPartial;
  if (op == ReduceOp::kProduct) {
    if (from_partial) return reduce_any<KernelSpec<Isa, F32, Small, Product>>;
    if (to_partial) return reduce_any<KernelSpec<Isa, Small, F32, Product>>;
    return reduce_any<KernelSpec<Isa, Within, Within, Product>>;
  }
  if (op == ReduceOp::kPremulSum && !from_partial) {
    if (to_partial) return reduce_any<KernelSpec<Isa, Small, F32, Sum, Scale::kInputs>>;
    return reduce_any<KernelSpec<Isa, Within, Within, Sum, Scale::kInputs>>;
  }
  if (op == ReduceOp::kAvg && !to_partial) {
    if (from_partial) return reduce_any<KernelSpec<Isa, F32, Small, Sum, Scale::kOutput>>;
    return reduce_few<KernelSpec<Isa, Within, Within, Sum, Scale::kOutput>>;
  }
  if (from_partial) return reduce_any<KernelSpec<Isa, F32, Small, Sum>>;
  if (to_partial) return reduce_any<KernelSpec<Isa, Small, F32, Sum>>;
  return reduce_few<KernelSpec<Isa, Within, Within, Sum>>;
}

template <class Isa>
Kernel find(Dtype dtype, ReduceOp op, Form input_form, Form output_form) {
  switch (dtype) {
    case Dtype::kI8:
      return find_integer<Isa, std::int8_t>(op);
    case Dtype::kU8:
      return find_integer<Isa, std::uint8_t>(op);
    case Dtype::kI16:
      return find_integer<Isa, std::int16_t>(op);
    case Dtype::kU16:
      return find_integer<Isa, std::uint16_t>(op);
    case Dtype::kI32:
      return find_integer<Isa, std::int32_t>(op);
    case Dtype::kU32:
      return find_integer<Isa, std::uint32_t>(op);
    case Dtype::kI64:
      return find_integer<Isa, std::int64_t>(op);
    case Dtype::kU64:
      return find_integer<Isa, std::uint64_t>(op);
    case Dtype::kBool:
      return find_bool<Isa>(op);
    case Dtype::kF32:
      return find_float<Isa, float>(op, input_form, output_form);
    case Dtype::kF64:
      return find_float<Isa, double>(op, input_form, output_form);
    case Dtype::kC64:
      return find_complex<Isa, float>(op, input_form, output_form);
    case Dtype::kC128:
      return find_complex<Isa, double>(op, input_form, output_form);
    case Dtype::kF16:
      return find_small_float<Isa, F16<Isa>, F16<Isa>>(op, input_form, output_form);
    case Dtype::kBf16:
      return find_small_float<Isa, Bf16<Isa>, Bf16Pairs<Isa>>(op, input_form, output_form);
    case Dtype::kF8E4m3:
      return find_small_float<Isa, Fp8<Isa, E4m3>, Fp8<Isa, E4m3>>(op, input_form, output_form);
    case Dtype::kF8E5m2:
      return find_small_float<Isa, Fp8<Isa, E5m2>, Fp8<Isa, E5m2>>(op, input_form, output_form);
  }
  return nullptr;
}

template <class Isa>
constexpr KernelSet kernel_set() {
  return {.find = find<Isa>, .copy_streaming = copy_streaming_with<Isa>};
}

}  // namespace
}  // namespace ivy::comm
