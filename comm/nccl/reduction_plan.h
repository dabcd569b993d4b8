// SPDX-License-Identifier: Apache-2.0
// Decides how a reduction of device memory is carried out: by NCCL's reduction of the same name, by
// another of NCCL's (complex numbers as twice as many floats, "or" of bools as the maximum of
// bytes), or through host memory by the kernels of comm/reduce, if NCCL lacks the reduction or its
// result would differ.
//
// The decision depends only on the operation, so that all ranks decide the same. Pure. Thread: any.
#pragma once

#include <cstddef>

#include "comm/nccl/abi.h"
#include "comm/reduce/element.h"
#include "proto/wire/operation.h"

namespace ivy::comm::nccl {

struct ReductionPlan {
  bool is_staged = true;  // Through host memory. If true, the other members are not used.
  Element element = Element::kU8;
  Reduce reduce = Reduce::kSum;
  bool is_premultiplied = false;  // PREMUL_SUM: NCCL's reduction is made with the rank's factor.
  std::size_t multiplicity = 1;   // Number of NCCL's elements for one of the caller's.
};

const ReductionPlan& plan_reduction(comm_status::Operation operation, Dtype dtype, ReduceOp op);

}  // namespace ivy::comm::nccl
