// SPDX-License-Identifier: Apache-2.0
// Advice that follows from the output of several ranks, for the summary. Only the launcher sees all
// of them. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/option_types.h"
#include "launcher/report/diagnostic.h"
#include "launcher/report/verdict.h"

namespace ivy {

// The rendezvous address that workers were given: MASTER_ADDR and MASTER_PORT.
struct MasterAddress {
  std::string host;        // Name of the host of rank 0.
  std::string address;     // MASTER_ADDR.
  std::uint16_t port = 0;  // MASTER_PORT.
  // The job's store listens at this address, and on localhost of rank 0's host.
  bool has_store = false;
};

// Detects, in a job of several hosts, a script that overwrites MASTER_ADDR or MASTER_PORT, as many
// tutorials do. The evidence is the error of a worker that could not connect:
//  - A worker on another host than rank 0's tried its own host (localhost): every rank has
//    overwritten the address.
//  - It tried the address that it was given, and no server listened there although rank 0 was
//    running: only rank 0 has overwritten it. With the job's store this cannot happen.
//  - With the job's store, a worker on rank 0's host tried another port of that host.
//
// The second case is not reported if rank 0 may have exited first, because its peers' connections
// are then refused too. Returns nullopt if all hosts are one machine, where localhost is right.
std::optional<Diagnostic> overwritten_master_address(const std::vector<WorkerEnd>& ends,
                                                     const MasterAddress& master);

// Detects a worker on the store's host whose own server could not use MASTER_PORT, because the
// store listens there while the job runs. Returns nullopt if its output does not name that port.
std::optional<Diagnostic> taken_master_port(const std::vector<WorkerEnd>& ends,
                                            const MasterAddress& master);

// Detects Python's input() or breakpoint() in a rank that has no standard input.
std::optional<Diagnostic> missing_input(const WorkerEnd& first, const InputChoice& input);

}  // namespace ivy
