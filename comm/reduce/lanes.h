// How elements become lanes of vector registers and lanes become elements: the part of the kernels
// that knows types. Vectors are those of the compiler (GCC and Clang, `vector_size`), so that one
// text serves every instruction set; an `Isa` says how wide they are and does the few things that
// want an instruction by name:
//
//   kBytes                      the width of its vectors
//   widen_f16, narrow_f16       half a vector of f16 bits <-> a vector of f32
//   store_streaming(to, word)   where the word's width has such a store; `to` is aligned
//   fence()                     after the last streaming store
//   copy_part(to, from, bytes)  memcpy of 1 to kBytes bytes
//
// Everything here is in an unnamed namespace: each instruction set's file compiles its own, with
// its own flags, and the linker must never hand one file's code to another.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/reduce/element.h"

#define IVY_INLINE inline __attribute__((always_inline))

namespace ivy::comm {
namespace {

static_assert(std::endian::native == std::endian::little,
              "bf16 pairs and partials are little endian");

template <class T, std::size_t bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
};
template <class T, std::size_t bytes>
using Vector = typename VectorOf<T, bytes>::type;

template <class V>
using LaneOf = std::remove_cvref_t<decltype(std::declval<V>()[0])>;

template <class V>
inline constexpr int kLanes = sizeof(V) / sizeof(LaneOf<V>);

template <std::size_t bytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = std::uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = std::uint64_t;
};

// The vector of unsigned lanes of the same width; a cast keeps the bits.
template <class V>
using BitsOf = Vector<typename UnsignedOf<sizeof(LaneOf<V>)>::type, sizeof(V)>;

template <class V>
inline constexpr bool kIsFloating = std::is_floating_point_v<LaneOf<V>>;

// The one NaN that results have: positive, quiet, no payload. Machines and even the order in which
// a compiler puts operands choose among NaNs differently; results must not.
template <class V>
IVY_INLINE V with_one_nan(V value) {
  if constexpr (kIsFloating<V>) {
    constexpr auto kNan = sizeof(LaneOf<V>) == 4 ? 0x7fc00000 : 0x7ff8000000000000;
    const V nan = (V)(BitsOf<V>{} + static_cast<LaneOf<BitsOf<V>>>(kNan));
    return value == value ? value : nan;
  } else {
    return value;
  }
}

// x - 0 is x for every x, also for -0, where x + 0 would not be.
template <class V>
IVY_INLINE V splat(LaneOf<V> lane) {
  return lane - V{};
}

// The small formats, sign + exponent + mantissa bits, through integer lanes: no table, and no
// dependence on how the processor treats subnormal numbers.
enum class Overflow : std::uint8_t {
  kInfinity,          // As IEEE 754: f16.
  kSaturate,          // Finite values stay finite, infinities stay infinite: e5m2.
  kSaturateInfinity,  // There is no infinity; the code of all ones is NaN: e4m3.
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
    using F32 = Vector<float, sizeof(U32)>;
    using I32 = Vector<std::int32_t, sizeof(U32)>;
    const U32 absolute = code & kAbsolute;
    const U32 sign = (code & (kAbsolute + 1)) << kSignShift;
    U32 bits = (absolute << kShift) + (static_cast<std::uint32_t>(127 - kBias) << 23);
    // A power of two times a small integer: exact.
    constexpr float kUnit =
        std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias - mantissa_bits) << 23);
    const U32 subnormal = (U32)(__builtin_convertvector((I32)absolute, F32) * kUnit);
    bits = absolute < (1u << mantissa_bits) ? subnormal : bits;
    if constexpr (overflow == Overflow::kSaturateInfinity) {
      bits = absolute == kAbsolute ? U32{} + 0x7fc00000u : bits;
    } else {
      bits = absolute >= kSpecial ? (absolute << kShift) | 0x7f800000u : bits;
    }
    return (F32)(bits | sign);
  }

  // To nearest, ties to even.
  template <class F32>
  static IVY_INLINE BitsOf<F32> narrow(F32 value) {
    using U32 = BitsOf<F32>;
    const U32 sign = ((U32)value >> kSignShift) & (kAbsolute + 1);
    const U32 absolute = (U32)value & 0x7fffffffu;
    U32 code = absolute - (static_cast<std::uint32_t>(127 - kBias) << 23);
    code = (code + ((1u << (kShift - 1)) - 1) + ((code >> kShift) & 1u)) >> kShift;
    // Below the least normal number, an addition rounds for us: the unit in the last place of
    // `kMagic` is the format's least step.
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(128 - kBias - mantissa_bits + 23)
                                     << 23;
    const U32 subnormal = (U32)((F32)absolute + std::bit_cast<float>(kMagic)) - kMagic;
    code = absolute < (static_cast<std::uint32_t>(128 - kBias) << 23) ? subnormal : code;
    code = code > kGreatest ? U32{} + kGreatest : code;
    code = absolute == 0x7f800000u ? U32{} + kOfInfinity : code;
    return absolute > 0x7f800000u ? U32{} + kNan : (code | sign);
  }
};

using F16Codec = SmallFloat<5, 10, Overflow::kInfinity>;
using E4m3Codec = SmallFloat<4, 3, Overflow::kSaturateInfinity>;
using E5m2Codec = SmallFloat<5, 2, Overflow::kSaturate>;

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

// The upper half of each lane is the rounded bf16; a NaN is already the one that survives this.
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

// bf16 to bf16: elements at even places in one vector, at odd places in the other, which takes no
// shuffle.
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

template <class Isa, class Codec>
struct Fp8 {
  using Lanes = Vector<float, Isa::kBytes>;
  using Word = Vector<std::uint8_t, Isa::kBytes / 4>;
  static constexpr int kVectors = 1;
  static constexpr std::size_t kElementBytes = 1;
  static IVY_INLINE void widen(const Word& word, Lanes* lanes) {
    lanes[0] = Codec::widen(__builtin_convertvector(word, BitsOf<Lanes>));
  }
  static IVY_INLINE Word narrow(const Lanes* lanes) {
    return __builtin_convertvector(Codec::narrow(lanes[0]), Word);
  }
};

}  // namespace
}  // namespace ivy::comm
