// SPDX-License-Identifier: Apache-2.0
// An operation of the status page in the words of job.proto. Pure. Thread: any.
#pragma once

#include <cstdint>

#include "proto/wire/job.pb.h"
#include "proto/wire/status_page.h"

namespace ivy {

// `slot`: the record's slot, which has the name of its communicator.
void describe_operation(const comm_status::OperationRecord& record,
                        const comm_status::SlotView& slot, std::uint64_t now_ns,
                        OperationState& out);

}  // namespace ivy
