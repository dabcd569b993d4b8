// SPDX-License-Identifier: Apache-2.0
// Converts the small floating-point formats to and from f32, one vector at a time, in integer
// lanes: without a table, and independently of how the processor treats subnormal numbers. In an
// unnamed namespace for the reason given in comm/reduce/vectors.h.
#pragma once

#include <bit>
#include <cstdint>

#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

enum class Overflow : std::uint8_t {
  kInfinity,          // As in IEEE 754: f16.
  kSaturate,          // Finite values stay finite, infinities stay infinite: e5m2.
  kSaturateInfinity,  // There is no infinity, and the code of all ones is NaN: e4m3.
};

template <int exponent_bits, int mantissa_bits, Overflow overflow>
struct SmallFloat {
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - mantissa_bits;
  static constexpr int kSignShift = 31 - (exponent_bits + mantissa_bits);
  static constexpr std::uint32_t kAbsolute = (1u << (exponent_bits + mantissa_bits)) - 1;
  static constexpr std::uint32_t kSpecial = ((1u << exponent_bits) - 1) << mantissa_bits;
  static constexpr std::uint32_t kNan =
      overflow == Overflow::kInfinity ? kSpecial | (1u << (mantissa_bits - 1)) : kAbsolute;
  static constexpr std::uint32_t kGreatest = overflow == Overflow::kInfinity   ? kSpecial
                                             : overflow == Overflow::kSaturate ? kSpecial - 1
                                                                               : kAbsolute - 1;
  static constexpr std::uint32_t kOfInfinity =
      overflow == Overflow::kSaturateInfinity ? kGreatest : kSpecial;

  // `code` holds one code per 32-bit lane.
  template <class U32>
  static IVY_INLINE auto widen(U32 code) {
    static_assert(overflow == Overflow::kInfinity);
    using F32 = Vector<float, sizeof(U32)>;
    using I32 = Vector<std::int32_t, sizeof(U32)>;
    const U32 absolute = code & kAbsolute;
    const U32 sign = (code & (kAbsolute + 1)) << kSignShift;
    U32 bits = (absolute << kShift) + (static_cast<std::uint32_t>(127 - kBias) << 23);
    // The product is exact, because it is a power of two times a small integer.
    constexpr float kUnit =
        std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias - mantissa_bits) << 23);
    const U32 subnormal = (U32)(__builtin_convertvector((I32)absolute, F32) * kUnit);
    bits = absolute < (1u << mantissa_bits) ? subnormal : bits;
    bits = absolute >= kSpecial ? (absolute << kShift) | 0x7f800000u : bits;
    return (F32)(bits | sign);
  }

  // Rounds to nearest, ties to even.
  template <class F32>
  static IVY_INLINE BitsOf<F32> narrow(F32 value) {
    using U32 = BitsOf<F32>;
    const U32 sign = ((U32)value >> kSignShift) & (kAbsolute + 1);
    const U32 absolute = (U32)value & 0x7fffffffu;
    U32 code = absolute - (static_cast<std::uint32_t>(127 - kBias) << 23);
    code = (code + ((1u << (kShift - 1)) - 1) + ((code >> kShift) & 1u)) >> kShift;
    // Below the least normal number, an addition does the rounding: the unit in the last place of
    // `kMagic` is the smallest step of the format.
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(128 - kBias - mantissa_bits + 23)
                                     << 23;
    const U32 subnormal = (U32)((F32)absolute + std::bit_cast<float>(kMagic)) - kMagic;
    code = absolute < (static_cast<std::uint32_t>(128 - kBias) << 23) ? subnormal : code;
    code = code > kGreatest ? U32{} + kGreatest : code;
    if constexpr (kOfInfinity != kGreatest) {
      code = absolute == 0x7f800000u ? U32{} + kOfInfinity : code;
    }
    return absolute > 0x7f800000u ? U32{} + kNan : (code | sign);
  }
};

using F16Codec = SmallFloat<5, 10, Overflow::kInfinity>;
using E4m3Codec = SmallFloat<4, 3, Overflow::kSaturateInfinity>;
using E5m2Codec = SmallFloat<5, 2, Overflow::kSaturate>;

}  // namespace
}  // namespace ivy::comm
