// Keeps one host's workers for one job: serves the launcher's carriers, starts workers, passes
// their output on, ends them, and proves that nothing of them is left. It is forked by the warden,
// so it begins in a process of its own. See "Process model" in agent/README.md. Thread: the
// process's only thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/node/job_directory.h"
#include "agent/node/job_outcome.h"
#include "agent/node/lease.h"

namespace ivy {

// What the warden hands over. All descriptors belong to the supervisor and are close-on-exec.
struct SupervisorStart {
  std::string job_id;  // 32 hexadecimal digits.
  std::uint32_t host = 0;
  JobDirectory directory;  // Exists; the warden removes it after the supervisor's end.
  int listening_fd = -1;   // The command socket: listening, non-blocking.
  int carrier_fd = -1;     // The first carrier: a connected stream socket, blocking mode.
  CarrierKind carrier = CarrierKind::kLocal;
  int warden_pidfd = -1;  // Readable when the warden has died: end everything, then exit.
  pid_t warden_pid = 0;
  // The task of the scheduler's step that holds us; 0: none. The scheduler's signals reach us only
  // where they reach every process below it, and it tells the launcher of them (dial.h): here they
  // mean nothing. When it dies the scheduler may have lost sight of us: end the job.
  pid_t step_task = 0;
  bool tells_outcome = false;  // Somebody keeps the exit code: it says how the job ended.
};

// Runs the job on this host until its end and returns the process's exit code.
//
// At entry: standard descriptors are /dev/null, no others are open than those above and the lock of
// the job directory; the process is a subreaper, its working directory is "/", its signal mask is
// empty and every signal has its default action, but SIGPIPE, which is ignored. The umask is the
// user's. When it returns, the process exits; whatever is then left of the job, the warden ends.
int run_supervisor(const SupervisorStart& start);

}  // namespace ivy
