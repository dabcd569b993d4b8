// SPDX-License-Identifier: Apache-2.0
#include "comm/group/core/operation_display.h"

namespace ivy::comm {

OperationDisplay::OperationDisplay(StatusRows& rows, const Membership& ranks,
                                   const std::string& name)
    : ranks_(ranks), row_(rows, name) {
  if (!row_) return;
  slot_.emplace(row_.slot());
  record_.communicator = static_cast<std::uint16_t>(row_.number());
  record_.communicator_hash = comm_status::communicator_hash(name);
}

void OperationDisplay::show(const OperationShape& shape) {
  record_.count = elements_of(shape);
  record_.entered_ns = clock_.now_ns();
  record_.ended_ns = 0;
  record_.outcome = comm_status::Outcome::kRunning;
  record_.operation = shape.operation;
  record_.dtype = has_data(shape.operation) ? page_number(shape.dtype) : comm_status::Dtype::kNone;
  record_.reduction =
      reduces(shape.operation) ? page_number(shape.op) : comm_status::Reduction::kNone;
  record_.peer = ranks_.job_rank(shape.root);
  slot_->enter(record_);
}

}  // namespace ivy::comm
