// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/operation_state.h"

#include <string>

namespace ivy {

using comm_status::OperationRecord;
using comm_status::Outcome;
using comm_status::SlotView;

void describe_operation(const OperationRecord& record, const SlotView& slot, std::uint64_t now_ns,
                        OperationState& out) {
  const std::string name = slot.communicator_name(record.communicator);
  // The row may have got another owner since.
  const bool is_its = comm_status::communicator_hash(name) == record.communicator_hash;
  out.set_communicator(is_its ? name : "");
  out.set_sequence(record.sequence);
  out.set_operation(static_cast<std::uint32_t>(record.operation));
  out.set_dtype(static_cast<std::uint32_t>(record.dtype));
  out.set_reduction(static_cast<std::uint32_t>(record.reduction));
  out.set_count(record.count);
  out.set_peer(record.peer);
  out.set_failed(record.outcome == Outcome::kFailed);
  const std::uint64_t since =
      record.outcome == Outcome::kRunning ? record.entered_ns : record.ended_ns;
  out.set_age_ms(now_ns > since ? (now_ns - since) / 1'000'000 : 0);
}

}  // namespace ivy
