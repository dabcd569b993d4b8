// SPDX-License-Identifier: Apache-2.0
// The identity element of a reduction: the result of an exclusive scan on the first rank.
//
// Pure; thread: any. No allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/reduce/element.h"

namespace ivy::comm {

// One element's bytes in the machine's order (little endian); the rest is zero.
using ElementBytes = std::array<std::uint8_t, 16>;

namespace identity_parts {

constexpr ElementBytes of_bits(std::uint64_t bits) {
  ElementBytes bytes = {};
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(bits >> 8 * i);
  return bytes;
}

// The bits of 1, and of the greatest and the least number of a floating-point type; f8e4m3 has no
// infinity.
struct FloatBits {
  std::uint64_t one;
  std::uint64_t greatest;
  std::uint64_t least;
};
constexpr FloatBits float_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return {0x3c00, 0x7c00, 0xfc00};
    case Dtype::kBf16:
      return {0x3f80, 0x7f80, 0xff80};
    case Dtype::kF32:
    case Dtype::kC64:
      return {0x3f800000, 0x7f800000, 0xff800000};
    case Dtype::kF8E4m3:
      return {0x38, 0x7e, 0xfe};
    case Dtype::kF8E5m2:
      return {0x3c, 0x7c, 0xfc};
    default:  // F64 and C128
      return {0x3ff0000000000000, 0x7ff0000000000000, 0xfff0000000000000};
  }
}

constexpr bool is_unsigned(Dtype dtype) {
  return dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32 ||
         dtype == Dtype::kU64;
}

constexpr FloatBits number_bits(Dtype dtype) {
  const ElementKind kind = row_of(dtype).kind;
  if (kind == ElementKind::kBool) return {1, 1, 0};
  if (kind != ElementKind::kInteger) return float_bits(dtype);
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - 8 * element_bytes(dtype));
  if (is_unsigned(dtype)) return {1, all, 0};
  return {1, all >> 1, (all >> 1) + 1};
}

}  // namespace identity_parts

constexpr ElementBytes identity_of(Dtype dtype, ReduceOp op) {
  using identity_parts::of_bits;
  const identity_parts::FloatBits bits = identity_parts::number_bits(dtype);
  switch (op) {
    case ReduceOp::kProduct:
      return of_bits(bits.one);
    case ReduceOp::kMin:
      return of_bits(bits.greatest);
    case ReduceOp::kMax:
      return of_bits(bits.least);
    case ReduceOp::kBand:
      return of_bits(dtype == Dtype::kBool ? 1 : ~std::uint64_t{0});
    default:
      return of_bits(0);
  }
}

inline void fill_with_identity(Dtype dtype, ReduceOp op, void* to, std::size_t count) {
  const ElementBytes one = identity_of(dtype, op);
  const std::size_t bytes = element_bytes(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(to) + i * bytes, one.data(), bytes);
  }
}

}  // namespace ivy::comm
