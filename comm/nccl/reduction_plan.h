// SPDX-License-Identifier: Apache-2.0
// How a reduction of device memory is carried out: by NCCL under its own name, by NCCL under
// another (complex numbers are twice as many floats, bool is a byte's maximum), or through host
// memory by the kernels of comm/reduce, because NCCL has no such thing or gives another result.
//
// The answer depends on the operation alone, so that all ranks find the same. Pure. Thread: any.
#pragma once

#include <cstddef>

#include "comm/nccl/abi.h"
#include "comm/reduce/element.h"
#include "proto/wire/operation.h"

namespace ivy::comm::nccl {

struct ReductionPlan {
  bool is_staged = true;  // Through host memory; the rest has no meaning then.
  Element element = Element::kU8;
  Reduce reduce = Reduce::kSum;
  bool is_premultiplied = false;  // PREMUL_SUM: by an operation made with the rank's factor.
  std::size_t multiplicity = 1;   // Number of NCCL's elements for one of the caller's.
};

const ReductionPlan& plan_reduction(comm_status::Operation operation, Dtype dtype, ReduceOp op);

}  // namespace ivy::comm::nccl
