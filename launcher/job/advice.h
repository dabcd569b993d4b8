// SPDX-License-Identifier: Apache-2.0
// Advice that only the launcher can give, because it alone sees all ranks. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "launcher/report/verdict.h"

namespace ivy {

// The address and port of rank 0 that workers were given.
struct MasterPlace {
  std::string host;  // Name of the host of rank 0.
  std::string address;
  std::uint16_t port = 0;
  bool has_store = false;  // The job's store listens there, and on rank 0's own host for localhost.
};

// On several hosts, a script that overwrites MASTER_ADDR (or MASTER_PORT), as many tutorials do.
// The sign is the error of a worker on another host than rank 0's that cannot connect:
//  - it tried its own host (localhost): every rank has overwritten it;
//  - it tried the place that it was given, and had no listener there though rank 0 was running:
//    rank 0 alone has overwritten it. With the job's store this cannot happen; then
//  - a worker on rank 0's host that tried another port of its own host gives it away.
// Nothing when rank 0 may have ended first, which refuses its peers too, nor when all hosts are one
// machine, where localhost is right.
std::optional<Diagnostic> overwritten_master_address(const std::vector<WorkerEnd>& ends,
                                                     const MasterPlace& master);

// A rank on the store's own host that could not open MASTER_PORT for a server of its own: the store
// has it while the job runs. Nothing where the rank's words name another address.
std::optional<Diagnostic> taken_master_port(const std::vector<WorkerEnd>& ends,
                                            const MasterPlace& master);

// Python's input() and breakpoint() in a rank that has no standard input.
std::optional<Diagnostic> missing_input(const WorkerEnd& first, const std::string& stdin_choice);

}  // namespace ivy
