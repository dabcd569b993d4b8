// SPDX-License-Identifier: Apache-2.0
// The vectors of the kernels. They are the compiler's (GCC and Clang, `vector_size`), so that the
// same source serves every instruction set. An `Isa` defines their width and the few operations
// that need specific instructions:
//
//   kBytes                      the width of its vectors
//   kFewInputs                  whether 2, 3 and 4 inputs have separate loops
//   widen_f16, narrow_f16       half a vector of f16 bits <-> a vector of f32
//   store_streaming(to, word)   if the word's width has such a store; `to` is aligned
//   fence()                     after the last streaming store
//   copy_part(to, from, bytes)  memcpy of 1 to kBytes bytes
//
// Everything here is in an unnamed namespace: each instruction set's file compiles its own copy
// with its own flags, and the linker must never use one file's code in another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define IVY_INLINE inline __attribute__((always_inline))

namespace ivy::comm {
namespace {

// Vectors that one block accumulates at a time.
inline constexpr int kBlockVectors = 4;
// From this size on, unaligned stores cost more than processing a few elements separately.
inline constexpr std::size_t kAlignFromBytes = 4096;
inline constexpr std::size_t kLineBytes = 64;

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

// The vector of unsigned lanes of the same width; a cast preserves the bits.
template <class V>
using BitsOf = Vector<typename UnsignedOf<sizeof(LaneOf<V>)>::type, sizeof(V)>;

template <class V>
inline constexpr bool kIsFloating = std::is_floating_point_v<LaneOf<V>>;

// Returns the value with every NaN replaced by the only NaN that results have: positive, quiet, no
// payload. Machines, and even the order in which a compiler uses operands, choose among NaNs
// differently; results must not.
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

// x - 0 is x for every x, including -0, for which x + 0 is not.
template <class V>
IVY_INLINE V splat(LaneOf<V> lane) {
  return lane - V{};
}

// Not memcpy, which GCC 12 compiles to moves of 16 bytes even if the vector has 32.
template <class Word>
struct Unaligned {
  typedef Word type __attribute__((aligned(1), may_alias));
};

template <class Word>
IVY_INLINE Word load(const std::byte* from) {
  return *reinterpret_cast<const typename Unaligned<Word>::type*>(from);
}

template <class Word>
IVY_INLINE void store(std::byte* to, const Word& word) {
  *reinterpret_cast<typename Unaligned<Word>::type*>(to) = word;
}

}  // namespace
}  // namespace ivy::comm
