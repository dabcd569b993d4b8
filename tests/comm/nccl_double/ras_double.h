// SPDX-License-Identifier: Apache-2.0
// The stand-in of NCCL's health service: every process listens at NCCL_RAS_ADDR, all of them at the
// same one, and answers there in the service's protocol of lines. This one knows its own process
// only.
#pragma once

#include <functional>
#include <string>

namespace nccl_double {

// Once for the process, from the first communicator on. `say` gives the part of the answer behind
// the summary of the job; it is called by the service's thread. Without the variable: nothing.
void serve_ras(std::function<std::string()> say);

}  // namespace nccl_double
