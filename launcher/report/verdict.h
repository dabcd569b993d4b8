// SPDX-License-Identifier: Apache-2.0
// Finds the worker that failed first, and the exit code of ivyrun. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "proto/contract/exit_code.h"

namespace ivy {

// How one worker ended, on the launcher's clock.
struct WorkerEnd {
  int rank = 0;
  std::string host;
  int pid = 0;
  ExitStatus status;
  bool core_dumped = false;
  bool out_of_memory = false;
  bool tolerated = false;           // The job continued without it (--on-failure shrink).
  bool lost_with_host = false;      // It is tolerated, and how it has ended is not known.
  bool after_stop = false;          // The supervisor had already been told to stop it: a victim.
  std::int64_t at_ns = 0;           // On the launcher's CLOCK_MONOTONIC (host_clock.h).
  std::int64_t clock_error_ns = 0;  // To other hosts' ends; one host orders its own.
  std::string error_file;           // Content of TORCHELASTIC_ERROR_FILE.
  std::string stderr_tail;          // The last bytes of its standard error, at most 64 KiB.
  bool is_just_shown = false;  // The end of stderr_tail is among the last lines on the console.
  std::string cause;           // "by MPI_Abort(7)": how it ended, if its status does not show it.
  std::string exec_failure;    // "exec: No such file or directory: /x" when it never ran.
};

// Why the launcher itself ended the job, when it did.
enum class LauncherReason {
  kNone,
  kInterrupted,
  kTimeout,
  kStalled,  // A stall ends the job, as --on-stall stop says.
  kHostLost,
  kSupervisorLost,
  kStoreLost,
  kOutputClosed,
  kPreempted,  // The time of the Slurm allocation is up.
  kHostsNotUp,
  kRefused,
  kInternal
};

struct LauncherEnd {
  LauncherReason reason = LauncherReason::kNone;
  int signal = 0;  // The signal of kInterrupted and kPreempted.
  Diagnostic diagnostic;
  std::int64_t at_ns = 0;
};

struct Outcome {
  int exit_code = 0;
  int raise_signal = 0;                 // Restore the default handler and raise this at the end.
  bool origin_is_worker = false;        // The exit code is a worker's.
  std::optional<std::size_t> first;     // Index into ends: the first cause.
  std::vector<std::size_t> candidates;  // Others that failed by themselves, in order of time.
  std::vector<std::size_t> victims;
  std::vector<std::size_t> succeeded;
  std::vector<std::size_t> lost;  // The job continued without them and did not fail.
};

// Ends on one host are ordered by that host. Between hosts the earlier one is the cause. If two are
// closer than the sum of their clock errors, the heavier is: an out-of-memory kill, then a signal,
// then an exit code; at equal weight the earlier estimate. An exit after the stop order is a
// victim's; a collective library's watchdog abort (SIGABRT, also as a shell's 134, with its text in
// the tail) is a symptom and loses to any other cause. A tolerated end counts only where another
// failure has ended the job.
Outcome judge(const std::vector<WorkerEnd>& ends, const LauncherEnd& launcher_end);

// A collective library's watchdog ended it, by its words: a symptom of what another rank did or
// left.
bool was_aborted_by_watchdog(const WorkerEnd& end);
// True after SIGABRT, or a shell's exit code for it: the worker's last output may still arrive.
bool was_abort(const ExitStatus& status);

// The last Python traceback in a standard error tail, without a decorator's help; empty if none.
std::string last_traceback(const std::string& stderr_tail);

}  // namespace ivy
