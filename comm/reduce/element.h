// SPDX-License-Identifier: Apache-2.0
// The types of elements that collectives move and reduce, and the reductions, as listed in
// proto/wire/operations.def. The numbers are part of the C ABI (comm/contract/ivycomm.h) and of the
// values that ranks compare. Everything is inlined into its callers, so that code compiled for
// newer processors is never shared with other callers. Pure. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy::comm {

enum class Dtype : std::uint8_t {
#define IVY_ELEMENT(name, number, enumerator, ...) enumerator = number,
#include "proto/wire/operations.def"
};
enum class ReduceOp : std::uint8_t {
#define IVY_REDUCTION(name, number, enumerator, ...) enumerator = number,
#include "proto/wire/operations.def"
};

enum class ElementKind : std::uint8_t { kInteger, kBool, kFloat, kComplex };
// The kinds of elements for which a reduction is defined: kOrdered excludes complex types, kBits
// means integer or bool, kScaled means floating point or complex.
enum class Reducible : std::uint8_t { kAny, kOrdered, kBits, kScaled };
// Meaning of a reduction on bools.
enum class OnBool : std::uint8_t { kNone, kAnd, kOr, kXor };

struct ElementRow {
  std::string_view name;
  std::uint8_t bytes;
  ElementKind kind;
};
struct ReductionRow {
  std::string_view name;
  Reducible reducible;
  OnBool on_bool;
};
inline constexpr ElementRow kElements[] = {
#define IVY_ELEMENT(name, number, enumerator, text, bytes, kind, ...) \
  {text, bytes, ElementKind::kind},
#include "proto/wire/operations.def"
};
inline constexpr ReductionRow kReductions[] = {
#define IVY_REDUCTION(name, number, enumerator, text, reducible, on_bool, ...) \
  {text, Reducible::reducible, OnBool::on_bool},
#include "proto/wire/operations.def"
};
inline constexpr std::uint8_t kDtypeCount = sizeof kElements / sizeof kElements[0];
inline constexpr std::uint8_t kReduceOpCount = sizeof kReductions / sizeof kReductions[0];

[[gnu::always_inline]] constexpr const ElementRow& row_of(Dtype dtype) {
  IVY_ASSERT(static_cast<std::size_t>(dtype) < kDtypeCount);
  return kElements[static_cast<std::size_t>(dtype)];
}
[[gnu::always_inline]] constexpr const ReductionRow& row_of(ReduceOp op) {
  IVY_ASSERT(static_cast<std::size_t>(op) < kReduceOpCount);
  return kReductions[static_cast<std::size_t>(op)];
}

[[gnu::always_inline]] constexpr std::size_t element_bytes(Dtype dtype) {
  return row_of(dtype).bytes;
}
[[gnu::always_inline]] constexpr std::string_view dtype_name(Dtype dtype) {
  return row_of(dtype).name;
}
[[gnu::always_inline]] constexpr std::string_view reduce_op_name(ReduceOp op) {
  return row_of(op).name;
}

[[gnu::always_inline]] constexpr bool is_reducible(Dtype dtype, ReduceOp op) {
  const ElementKind kind = row_of(dtype).kind;
  switch (row_of(op).reducible) {
    case Reducible::kAny:
      return true;
    case Reducible::kOrdered:
      return kind != ElementKind::kComplex;
    case Reducible::kBits:
      return kind == ElementKind::kInteger || kind == ElementKind::kBool;
    case Reducible::kScaled:
      return kind == ElementKind::kFloat || kind == ElementKind::kComplex;
  }
  return false;
}

}  // namespace ivy::comm
