#include "comm/nccl/reduction_plan.h"

#include <optional>

namespace ivy::comm::nccl {
namespace {

using comm_status::Operation;

std::optional<Element> element_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI8:
      return Element::kI8;
    case Dtype::kU8:
    case Dtype::kBool:
      return Element::kU8;
    case Dtype::kI32:
      return Element::kI32;
    case Dtype::kU32:
      return Element::kU32;
    case Dtype::kI64:
      return Element::kI64;
    case Dtype::kU64:
      return Element::kU64;
    case Dtype::kF16:
      return Element::kF16;
    case Dtype::kBf16:
      return Element::kBf16;
    case Dtype::kF32:
    case Dtype::kC64:
      return Element::kF32;
    case Dtype::kF64:
    case Dtype::kC128:
      return Element::kF64;
    case Dtype::kI16:  // NCCL has none.
    case Dtype::kU16:
    case Dtype::kF8E4m3:  // Only since 2.24, and since 2.28 only on sm90: ranks could disagree.
    case Dtype::kF8E5m2:
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_integer(Dtype dtype) { return static_cast<int>(dtype) <= static_cast<int>(Dtype::kU64); }

bool is_complex(Dtype dtype) { return dtype == Dtype::kC64 || dtype == Dtype::kC128; }

// On bytes that are 0 or 1 "or" is the greatest and "and" the least.
std::optional<Reduce> reduce_of_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
    case ReduceOp::kAvg:
      return Reduce::kMax;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return Reduce::kMin;
    default:
      return std::nullopt;
  }
}

std::optional<Reduce> reduce_of(Dtype dtype, ReduceOp op) {
  if (dtype == Dtype::kBool) return reduce_of_bool(op);
  switch (op) {
    case ReduceOp::kSum:
      return Reduce::kSum;
    case ReduceOp::kAvg:
      // NCCL's average of integers divides a sum that has wrapped; ours is wider.
      if (is_integer(dtype)) return std::nullopt;
      return Reduce::kAvg;
    case ReduceOp::kProduct:
      if (is_complex(dtype)) return std::nullopt;
      return Reduce::kProduct;
    case ReduceOp::kMin:
      return Reduce::kMin;
    case ReduceOp::kMax:
      return Reduce::kMax;
    case ReduceOp::kPremulSum:
      // The factor is of the element's type; halves would round it first.
      if (dtype == Dtype::kF16 || dtype == Dtype::kBf16) return std::nullopt;
      return Reduce::kSum;
    default:
      return std::nullopt;  // Bitwise.
  }
}

}  // namespace

ReductionPlan plan_reduction(Operation operation, Dtype dtype, ReduceOp op) {
  ReductionPlan plan;
  const std::optional<Element> element = element_of(dtype);
  const std::optional<Reduce> reduce = reduce_of(dtype, op);
  if (operation == Operation::kScan || !element || !reduce) return plan;
  plan.is_staged = false;
  plan.element = *element;
  plan.reduce = *reduce;
  plan.is_premultiplied = op == ReduceOp::kPremulSum;
  plan.multiplicity = is_complex(dtype) ? 2 : 1;
  return plan;
}

}  // namespace ivy::comm::nccl
