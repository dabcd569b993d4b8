// SPDX-License-Identifier: Apache-2.0
// The operations of a reduction on vectors: prepare each input, combine from the left, finish once.
// In an unnamed namespace for the reason given in comm/reduce/vectors.h.
#pragma once

#include <utility>

#include "comm/reduce/vectors.h"

namespace ivy::comm {
namespace {

struct ReadInput {
  template <class V>
  static IVY_INLINE V prepare(V value) {
    return value;
  }
  template <class V>
  static IVY_INLINE V finish(V value) {
    return value;
  }
};

struct Sum : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a + b;
  }
};

struct Product : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a * b;
  }
};

struct And : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a & b;
  }
};

struct Or : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a | b;
  }
};

struct Xor : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return a ^ b;
  }
};

// x86's minimum returns its second operand if the two are equal or unordered. Computed both ways
// and combined by "or", the result is exact: of two zeros the sign bit remains, and a NaN remains a
// NaN whatever is combined with it.
struct Minimum : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    const V one = a < b ? a : b;
    if constexpr (kIsFloating<V>) {
      const V other = b < a ? b : a;
      return (V)((BitsOf<V>)one | (BitsOf<V>)other);
    } else {
      return one;
    }
  }
};

struct Maximum {
  template <class V>
  static IVY_INLINE V prepare(V value) {
    if constexpr (kIsFloating<V>) return -value;
    return value;
  }
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    if constexpr (kIsFloating<V>) return Minimum::combine(a, b);
    return a > b ? a : b;
  }
  template <class V>
  static IVY_INLINE V finish(V value) {
    return prepare(value);
  }
};

// Lanes are real, imaginary, real, imaginary ...
struct ComplexProduct : ReadInput {
  template <class V>
  static IVY_INLINE V combine(V a, V b) {
    return combine_lanes(a, b, std::make_integer_sequence<int, kLanes<V>>());
  }
  template <class V, int... lane>
  static IVY_INLINE V combine_lanes(V a, V b, std::integer_sequence<int, lane...>) {
    using Bits = BitsOf<V>;
    using Bit = LaneOf<Bits>;
    const V by_real = a * __builtin_shufflevector(b, b, (lane & ~1)...);
    const V by_imaginary =
        __builtin_shufflevector(a, a, (lane ^ 1)...) * __builtin_shufflevector(b, b, (lane | 1)...);
    const Bits minus = {(lane % 2 == 0 ? Bit{1} << (8 * sizeof(Bit) - 1) : Bit{0})...};
    return by_real + (V)((Bits)by_imaginary ^ minus);
  }
};

}  // namespace
}  // namespace ivy::comm
