// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/reduction_plan.h"

#include <array>

namespace ivy::comm::nccl {
namespace {

using comm_status::Operation;

constexpr Element kElementOf[] = {
#define IVY_ELEMENT(name, number, enumerator, text, bytes, kind, nccl, ...) Element::nccl,
#include "proto/wire/operations.def"
};
constexpr Reduce kReduceOf[] = {
#define IVY_REDUCTION(name, number, enumerator, text, reducible, on_bool, nccl) Reduce::nccl,
#include "proto/wire/operations.def"
};

// On bytes that are 0 or 1, "or" is the maximum and "and" the minimum.
constexpr Reduce reduce_of_bool(ReduceOp op) {
  switch (row_of(op).on_bool) {
    case OnBool::kOr:
      return Reduce::kMax;
    case OnBool::kAnd:
      return Reduce::kMin;
    default:
      return Reduce::kNone;
  }
}

// Returns true if NCCL's reduction of that name would give another result than comm/reduce: its
// average of integers divides a sum that may have overflowed, it multiplies the parts of complex
// numbers separately, and it rounds the factor to the element's type, which matters for 16-bit
// floats.
constexpr bool differs_from_nccl(Dtype dtype, ReduceOp op) {
  const ElementKind kind = row_of(dtype).kind;
  if (op == ReduceOp::kAvg) return kind == ElementKind::kInteger;
  if (op == ReduceOp::kProduct) return kind == ElementKind::kComplex;
  if (op == ReduceOp::kPremulSum) return dtype == Dtype::kF16 || dtype == Dtype::kBf16;
  return false;
}

constexpr ReductionPlan plan_of(Dtype dtype, ReduceOp op) {
  ReductionPlan plan;
  const ElementKind kind = row_of(dtype).kind;
  plan.element = kElementOf[static_cast<std::size_t>(dtype)];
  plan.reduce =
      kind == ElementKind::kBool ? reduce_of_bool(op) : kReduceOf[static_cast<std::size_t>(op)];
  plan.is_staged = plan.element == Element::kNone || plan.reduce == Reduce::kNone ||
                   differs_from_nccl(dtype, op);
  plan.is_premultiplied = op == ReduceOp::kPremulSum;
  plan.multiplicity = kind == ElementKind::kComplex ? 2 : 1;
  return plan;
}

using Plans = std::array<std::array<ReductionPlan, kReduceOpCount>, kDtypeCount>;
constexpr Plans kPlans = [] {
  Plans plans;
  for (std::size_t dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (std::size_t op = 0; op < kReduceOpCount; ++op) {
      plans[dtype][op] = plan_of(static_cast<Dtype>(dtype), static_cast<ReduceOp>(op));
    }
  }
  return plans;
}();

constexpr ReductionPlan kStaged;

}  // namespace

const ReductionPlan& plan_reduction(Operation operation, Dtype dtype, ReduceOp op) {
  if (has_trait(operation, comm_status::traits::kNotByNccl)) return kStaged;
  return kPlans[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
}

}  // namespace ivy::comm::nccl
