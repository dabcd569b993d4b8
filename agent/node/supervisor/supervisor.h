// SPDX-License-Identifier: Apache-2.0
// Keeps one host's workers for one job: serves the launcher's transports, starts workers, passes
// their output on, ends them, and proves that nothing of them is left. It is forked by the warden,
// so it begins in a process of its own. See "Process model" in agent/node/README.md. Thread: the
// process's main thread, which runs the loop; a heartbeat's thread and a pool for calls that may
// block run beside it.
#pragma once

#include "agent/node/supervisor/job_outcome.h"
#include "agent/node/supervisor/supervisor_start.h"

namespace ivy {

// Runs the job on this host until its end and returns the process's exit code.
//
// At entry: standard descriptors are /dev/null, no others are open than those above and the lock of
// the job directory; the process is a subreaper, its working directory is "/", its signal mask is
// empty and every signal has its default action, but SIGPIPE, which is ignored. The umask is the
// user's. When it returns, the process exits; whatever is then left of the job, the warden ends.
int run_supervisor(const SupervisorStart& start);

}  // namespace ivy
