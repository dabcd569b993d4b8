// SPDX-License-Identifier: Apache-2.0
// How elements in memory become lanes of vectors, and lanes become elements. In an unnamed
// namespace for the reason given in comm/reduce/vectors.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "bf16 pairs are little endian");

// -- The small floating-point formats to and from f32, one vector at a time, in integer lanes:
// without a table, and independently of how the processor treats subnormal numbers.

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

// -- Formats

// A format: memory is read and written in words of `Word`; one word holds the lanes of kVectors
// vectors of type `Lanes`. Input and output of a kernel have the same Lanes and kVectors.

template <class Isa, class T>
struct Plain {
  using Lanes = Vector<T, Isa::kBytes>;
  using Word = Lanes;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = sizeof(T);
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) { lanes[0] = word; }
  static IVY_INLINE Word narrow(const Lanes* lanes) { return lanes[0]; }
};

template <class Isa>
struct Bool {
  using Lanes = Vector<std::uint8_t, Isa::kBytes>;
  using Word = Lanes;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = 1;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) {
    lanes[0] = word != 0 ? Lanes{} + std::uint8_t{1} : Lanes{};
  }
  static IVY_INLINE Word narrow(const Lanes* lanes) { return lanes[0]; }
};

template <class Isa>
struct F16 {
  using Lanes = Vector<float, Isa::kBytes>;
  using Word = Vector<std::uint16_t, Isa::kBytes / 2>;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = 2;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) { lanes[0] = Isa::widen_f16(word); }
  static IVY_INLINE Word narrow(const Lanes* lanes) { return Isa::narrow_f16(lanes[0]); }
};

// The upper half of each lane is the rounded bf16. A NaN is already the one NaN of results, which
// rounding preserves.
template <class F32>
IVY_INLINE BitsOf<F32> rounded_to_bf16(F32 value) {
  const BitsOf<F32> bits = (BitsOf<F32>)value;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

template <class Isa>
struct Bf16 {
  using Lanes = Vector<float, Isa::kBytes>;
  using Word = Vector<std::uint16_t, Isa::kBytes / 2>;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = 2;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) {
    lanes[0] = (Lanes)(__builtin_convertvector(word, BitsOf<Lanes>) << 16);
  }
  static IVY_INLINE Word narrow(const Lanes* lanes) {
    return __builtin_convertvector(rounded_to_bf16(lanes[0]) >> 16, Word);
  }
};

// bf16 to bf16, with the elements at even positions in one vector and those at odd positions in the
// other, which needs no shuffle.
template <class Isa>
struct Bf16Pairs {
  using Lanes = Vector<float, Isa::kBytes>;
  using Word = Vector<std::uint32_t, Isa::kBytes>;
  static constexpr int kVectors = 2;
  static constexpr std::size_t kElementBytes = 2;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) {
    lanes[0] = (Lanes)(word << 16);
    lanes[1] = (Lanes)(word & 0xffff0000u);
  }
  static IVY_INLINE Word narrow(const Lanes* lanes) {
    return (rounded_to_bf16(lanes[0]) >> 16) | (rounded_to_bf16(lanes[1]) & 0xffff0000u);
  }
};

// Widened through f16, which represents every value of both formats. e5m2 is the upper half of an
// f16. The exponent of e4m3 has one bit less, so its bits are placed where f16 reads them as 2^-8
// times the value.
struct E5m2 {
  using Codec = E5m2Codec;
  static constexpr float kFactor = 1;
  template <class U16>
  static IVY_INLINE U16 f16_of(U16 code) {
    return code << 8;
  }
};

struct E4m3 {
  using Codec = E4m3Codec;
  static constexpr float kFactor = 256;
  template <class U16>
  static IVY_INLINE U16 f16_of(U16 code) {
    constexpr std::uint16_t kAbsolute = 0x7f;
    constexpr std::uint16_t kSign = 0x80;
    const U16 absolute = code & kAbsolute;
    const U16 bits = absolute == kAbsolute ? U16{} + std::uint16_t{0x7e00} : absolute << 7;
    return bits | (code & kSign) << 8;
  }
};

template <class Isa, class Kind>
struct Fp8 {
  using Lanes = Vector<float, Isa::kBytes>;
  using Word = Vector<std::uint8_t, Isa::kBytes / 4>;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = 1;
  using HalfWidth = Vector<std::uint16_t, Isa::kBytes / 2>;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) {
    lanes[0] = Isa::widen_f16(Kind::f16_of(__builtin_convertvector(word, HalfWidth)));
    if constexpr (Kind::kFactor != 1) lanes[0] *= Kind::kFactor;
  }
  // In two steps, because GCC 12 converts by a factor of four lane by lane.
  static IVY_INLINE Word narrow(const Lanes* lanes) {
    const HalfWidth halfway = __builtin_convertvector(Kind::Codec::narrow(lanes[0]), HalfWidth);
    return __builtin_convertvector(halfway, Word);
  }
};

}  // namespace
}  // namespace ivy::comm
