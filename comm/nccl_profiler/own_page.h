// SPDX-License-Identifier: Apache-2.0
// This process's page, from the supervisor of its host.
#pragma once

#include "proto/contract/status.h"
#include "proto/wire/status_page.h"

namespace ivy::nccl_profiler {

// Asks at IVY_CONTROL as one of the processes of IVY_RANK, which takes a second at most. The page
// stays mapped until the end of the process. FailedPrecondition: ivyrun has not started it.
Result<comm_status::StatusPage> ask_for_page();

}  // namespace ivy::nccl_profiler
