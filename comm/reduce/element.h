// The types of elements that collectives move and reduce, and the ways to reduce them. The numbers
// are part of the C ABI (comm/contract/ivycomm.h) and of what ranks compare with each other: they
// never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ivy::comm {

enum class Dtype : std::uint8_t {
  kI8 = 0,
  kU8 = 1,
  kI16 = 2,
  kU16 = 3,
  kI32 = 4,
  kU32 = 5,
  kI64 = 6,
  kU64 = 7,
  kF16 = 8,
  kBf16 = 9,
  kF32 = 10,
  kF64 = 11,
  kBool = 12,    // One byte, 0 or 1; any other value counts as 1.
  kC64 = 13,     // Two f32.
  kC128 = 14,    // Two f64.
  kF8E4m3 = 15,  // OCP FP8: no infinities, saturates at 448.
  kF8E5m2 = 16,  // OCP FP8: saturates at 57344; infinities and NaN of the input are kept.
};
inline constexpr std::uint8_t kDtypeCount = 17;

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kPremulSum = 8,  // Each rank's input times that rank's own factor, then the sum.
};
inline constexpr std::uint8_t kReduceOpCount = 9;

std::size_t element_bytes(Dtype dtype);
std::string_view dtype_name(Dtype dtype);      // "f32", "bool", "c64", "f8e4m3"
std::string_view reduce_op_name(ReduceOp op);  // "sum"

// Bitwise operations want integers or bool; MIN and MAX have no meaning for complex numbers;
// PREMUL_SUM wants floating point or complex.
bool is_reducible(Dtype dtype, ReduceOp op);

}  // namespace ivy::comm
