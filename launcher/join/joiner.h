// SPDX-License-Identifier: Apache-2.0
// The ivyrun of a node R > 0 in torchrun mode: joins node 0's, starts this host's ivy-node for it,
// shows what the workers of this host print and what node 0 says, and ends with the job's exit
// code.
//
//   dial ─ Welcome ─ Join ─ (wait) ─ Begin ─ ivy-node dial ─ Output, Said ... ─ End
//
// A lost connection is dialled again: until Begin for --start-timeout, then for as long as node 0
// keeps a host that is silent, and both go on where they were. A node 0 that refuses is gone, which
// is the end of the job. Killed, this process takes ivy-node and the workers along: to node 0 this
// host is then lost.
// Thread: the process's only one, but for look-ups of names.
#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/job/job_request.h"
#include "launcher/join/join_key.h"

namespace ivy {

// Runs the loop; returns the exit code. The request outlives it.
int run_joiner(boost::asio::io_context& loop, const JobRequest& request, const JoinKey& key);

}  // namespace ivy
