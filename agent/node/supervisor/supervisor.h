// SPDX-License-Identifier: Apache-2.0
// The supervisor: one host's part of one job. It serves the launcher's links, starts workers,
// passes their output on, stops them, and proves that none of their processes is left. It runs in a
// separate process, which the warden has forked. See "Process model" in agent/node/README.md.
// Thread: the process's main thread, which runs the loop; it starts a thread for heartbeats and a
// pool for calls that may block.
#pragma once

#include "agent/node/supervisor/supervisor_start.h"

namespace ivy {

// Runs the job on this host until its end and returns the process's exit code.
//
// At entry: the standard descriptors are /dev/null, and the only others are those in
// SupervisorStart and the lock of the job directory; the process is a subreaper; its working
// directory is "/"; its signal mask is empty; and every signal has its default action except
// SIGPIPE, which is ignored. The umask is the user's. When it returns, the process exits, and the
// warden kills all remaining processes of the job.
int run_supervisor(const SupervisorStart& start);

}  // namespace ivy
