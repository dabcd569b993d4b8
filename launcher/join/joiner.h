// SPDX-License-Identifier: Apache-2.0
// The ivyrun of a node R > 0 in torchrun mode: joins node 0's ivyrun, starts the ivy-node of this
// host for it, shows the output of this host's workers and the messages of node 0, and exits with
// the job's exit code.
//
//   dial ─ Welcome ─ Join ─ (wait) ─ Begin ─ ivy-node dial ─ Output, Notice ... ─ End
//
// A lost connection is dialled again: before Begin until --start-timeout, after it for
// kAbsenceLease. Both sides then continue where the last connection broke (joined_node.h). If node
// 0 refuses the connection after Begin, it has exited and the job has ended. If this process is
// killed, ivy-node and the workers are killed with it, and node 0 treats this host as lost.
//
// Thread: the only one of the process, except for name lookups.
#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/job/core/job_request.h"
#include "launcher/join/join_key.h"

namespace ivy {

// Runs the loop until the node has finished, and returns the exit code. The request must outlive
// the call.
int run_joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key);

}  // namespace ivy
