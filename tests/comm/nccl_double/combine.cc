// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_double/combine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace nccl_double {
namespace {

struct Bf16 {
  std::uint16_t bits;
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  static Bf16 of(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16)};
  }
};

struct F16 {
  std::uint16_t bits;
  operator float() const {
    const int exponent = bits >> 10 & 31;
    const float mantissa = static_cast<float>(bits & 1023);
    const float value = exponent == 0    ? std::ldexp(mantissa, -24)
                        : exponent == 31 ? INFINITY
                                         : std::ldexp(mantissa + 1024, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
  }
  // Exact for the values of the tests: small integers and their halves.
  static F16 of(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (value == 0) return {sign};
    int exponent = 0;
    const float part = std::frexp(std::fabs(value), &exponent);  // In [0.5, 1).
    const auto mantissa = static_cast<int>(std::nearbyint(part * 2048));
    const int bits = (exponent + 14) * 1024 + (mantissa - 1024);
    return {static_cast<std::uint16_t>(sign | bits)};
  }
};

template <class T>
T of(double value) {
  return static_cast<T>(value);
}
template <>
Bf16 of<Bf16>(double value) {
  return Bf16::of(static_cast<float>(value));
}
template <>
F16 of<F16>(double value) {
  return F16::of(static_cast<float>(value));
}

template <class T>
T combined(int op, T left, T right) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == 0) return static_cast<T>(static_cast<U>(left) + static_cast<U>(right));
    if (op == 1) {
      return static_cast<T>(
          static_cast<U>(static_cast<std::uint64_t>(left) * static_cast<std::uint64_t>(right)));
    }
    return op == 2 ? std::max(left, right) : std::min(left, right);
  } else {
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const Wide a = left;
    const Wide b = right;
    const Wide result = op == 0   ? a + b
                        : op == 1 ? a * b
                        : op == 2 ? std::max(a, b)
                                  : std::min(a, b);
    return of<T>(result);
  }
}

template <class Body>
void with_type(int type, Body body) {
  switch (type) {
    case 0:
      return body(std::int8_t());
    case 1:
      return body(std::uint8_t());
    case 2:
      return body(std::int32_t());
    case 3:
      return body(std::uint32_t());
    case 4:
      return body(std::int64_t());
    case 5:
      return body(std::uint64_t());
    case 6:
      return body(F16());
    case 7:
      return body(float());
    case 8:
      return body(double());
    default:
      return body(Bf16());
  }
}

}  // namespace

std::size_t element_bytes(int type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto one) { bytes = sizeof one; });
  return bytes;
}

void combine(int type, int op, char* into, const char* from, std::size_t bytes) {
  with_type(type, [&]<class T>(T) {
    for (std::size_t i = 0; i < bytes; i += sizeof(T)) {
      T left;
      T right;
      std::memcpy(&left, into + i, sizeof left);
      std::memcpy(&right, from + i, sizeof right);
      const T result = combined(op, left, right);
      std::memcpy(into + i, &result, sizeof result);
    }
  });
}

void scale(int type, double factor, char* into, std::size_t bytes) {
  with_type(type, [&]<class T>(T) {
    for (std::size_t i = 0; i < bytes; i += sizeof(T)) {
      T value;
      std::memcpy(&value, into + i, sizeof value);
      const T result = of<T>(static_cast<double>(value) * factor);
      std::memcpy(into + i, &result, sizeof result);
    }
  });
}

}  // namespace nccl_double
