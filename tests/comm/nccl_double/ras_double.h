// SPDX-License-Identifier: Apache-2.0
// A test double of NCCL's health service: every process listens at NCCL_RAS_ADDR, all at the same
// address, and answers in the service's line protocol. It knows only its own process.
#pragma once

#include <functional>
#include <string>

namespace nccl_double {

// Starts the service once per process, for the first communicator. `say` returns the part of the
// answer after the job summary; the service's thread calls it. Does nothing without the variable.
void serve_ras(std::function<std::string()> say);

}  // namespace nccl_double
