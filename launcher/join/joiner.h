// SPDX-License-Identifier: Apache-2.0
// The ivyrun of a node R > 0 in torchrun mode: joins node 0's ivyrun, starts this host's ivy-node
// for it, shows the output of this host's workers and the messages of node 0, and exits with the
// job's exit code.
//
//   dial ─ Welcome ─ Join ─ (wait) ─ Begin ─ ivy-node dial ─ Output, Said ... ─ End
//
// A lost connection is dialled again: until Begin for --start-timeout, then for as long as node 0
// waits for a silent host, and both sides continue where they were. If the connection is refused,
// node 0 has exited, and the job has ended. If this process is killed, ivy-node and the workers are
// killed with it, and node 0 treats this host as lost. Thread: the process's only one, except for
// name lookups.
#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/job/job_request.h"
#include "launcher/join/join_key.h"

namespace ivy {

// Runs the loop and returns the exit code. The request must outlive it.
int run_joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key);

}  // namespace ivy
