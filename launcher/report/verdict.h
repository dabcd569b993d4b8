// SPDX-License-Identifier: Apache-2.0
// Finds the worker that failed first, and the exit code of ivyrun. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "proto/contract/exit_code.h"

namespace ivy {

// The step of a start that failed, as far as the advice depends on it.
enum class StartStep { kOther, kBind, kStdin, kExec };

// The exit of one worker, on the launcher's clock.
struct WorkerEnd {
  int rank = 0;
  std::string host;
  int pid = 0;
  ExitStatus status;
  bool core_dumped = false;
  bool out_of_memory = false;
  bool tolerated = false;       // The job continued without it (--on-failure shrink).
  bool lost_with_host = false;  // It is tolerated, and its exit status is unknown.
  bool after_stop = false;  // The supervisor had already been told to stop it, so it is a victim.
  std::int64_t at_ns = 0;   // On the launcher's CLOCK_MONOTONIC (host_clock.h).
  std::int64_t clock_error_ns = 0;  // Relative to other hosts; each host orders its own exits.
  std::string error_file;           // Content of TORCHELASTIC_ERROR_FILE.
  std::string stderr_tail;          // The last bytes of its standard error, at most 64 KiB.
  bool was_just_printed = false;  // The end of stderr_tail is among the last lines on the console.
  std::uint64_t operations = 0;   // Operations of ivycomm that it had finished; 0: unknown.
  std::string cause;  // "by MPI_Abort(7)": the cause, if the exit status does not show it.
  // "exec: No such file or directory: /x" if it never ran; `status` then has ivyrun's exit code.
  std::string exec_failure;
  StartStep failed_step = StartStep::kOther;  // The step and the errno of exec_failure.
  int failed_errno = 0;
};

// Why the launcher itself ended the job, if it did.
enum class LauncherReason {
  kNone,
  kInterrupted,
  kTimeout,
  kStalled,  // A stall ends the job because of --on-stall stop.
  kHostLost,
  kSupervisorLost,
  kStoreLost,
  kOutputClosed,
  kPreempted,   // The Slurm allocation, the pod or a host that the job needs ends.
  kNoProgress,  // Attempts in a row have failed without progress.
  kHostsNotUp,
  kRejected,
  kInternal
};

// The name of a reason in the verdict for programs, and ivyrun's exit code for it unless the
// diagnostic has one.
struct ReasonRow {
  LauncherReason reason;
  std::string_view name;
  int exit_code;
};

const ReasonRow& reason_row(LauncherReason reason);

struct LauncherEnd {
  LauncherReason reason = LauncherReason::kNone;
  int signal = 0;  // The signal of kInterrupted and kPreempted.
  Diagnostic diagnostic;
  std::int64_t at_ns = 0;
};

struct Outcome {
  int exit_code = 0;
  int raise_signal = 0;  // If set, restore the default handler and raise this signal at the end.
  bool origin_is_worker = false;        // The exit code is a worker's.
  std::optional<std::size_t> first;     // Index of the first cause in `ends`.
  std::vector<std::size_t> candidates;  // Others that failed on their own, in order of time.
  std::vector<std::size_t> victims;
  std::vector<std::size_t> succeeded;
  std::vector<std::size_t> lost;  // The job continued without them; they are not failures.
};

// Determines the first cause. Exits on one host are ordered by that host. Between hosts the earlier
// exit is the cause. If two exits are not further apart than the sum of their clock errors, the
// more severe one is: an out-of-memory kill, then a signal, then an exit code; if these are equal,
// the earlier estimate. A worker that exits after the stop order is a victim. An abort by a
// collective library's watchdog (SIGABRT, or a shell's 134, with the watchdog's text in the tail)
// is a symptom, and any other cause takes precedence. A tolerated exit counts only if another
// failure has ended the job.
Outcome judge(const std::vector<WorkerEnd>& ends, const LauncherEnd& launcher_end);

// Returns true if the worker's output shows that a collective library's watchdog aborted it, which
// is a symptom of another rank's failure.
bool was_aborted_by_watchdog(const WorkerEnd& end);
// Returns true for SIGABRT, or a shell's exit code for it: the worker's last output may still
// arrive.
bool was_abort(const ExitStatus& status);

// Returns the last Python traceback in the tail of standard error, for scripts that write no error
// file (torch's @record does); empty if there is none.
std::string last_traceback(const std::string& stderr_tail);

}  // namespace ivy
