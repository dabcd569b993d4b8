// SPDX-License-Identifier: Apache-2.0
// This process's page, from the supervisor of its host.
#pragma once

#include "proto/contract/status.h"
#include "proto/wire/status_page.h"

namespace ivy::nccl_profiler {

// Requests the page at IVY_CONTROL as one of the processes of IVY_RANK, which takes at most a
// second. The page stays mapped until the process exits. Fails with FailedPrecondition if ivyrun
// has not started the process.
Result<comm_status::StatusPage> request_page();

}  // namespace ivy::nccl_profiler
