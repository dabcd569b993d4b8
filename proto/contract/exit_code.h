// SPDX-License-Identifier: Apache-2.0
// The exit status of a process, and ivyrun's own exit codes. Thread: any. Pure.
#pragma once

#include <string>

namespace ivy {

// ivyrun's own exit codes. A worker may return the same numbers, so the summary names the process
// that returned the code. Some follow conventions: 2 as in bash and Python's argparse, 75 is
// EX_TEMPFAIL of sysexits.h (try again later), 93 as in NVIDIA's ft_launcher, 124 as in timeout(1),
// 125 to 127 as in env(1) and shells, 141 is 128 + SIGPIPE. 119 to 123 are the free numbers before
// these.
inline constexpr int kExitUsage = 2;       // Usage, configuration or hostfile; nothing started.
inline constexpr int kExitPreempted = 75;  // Stopped by --preempt-signal, and all ranks returned 0.
inline constexpr int kExitNoProgress = 93;    // Restarts make no progress; do not requeue the job.
inline constexpr int kExitFetchFailed = 119;  // All ranks returned 0; files of --fetch are missing.
inline constexpr int kExitHostsNotUp = 120;   // Hosts did not come up in time.
inline constexpr int kExitHostLost = 121;     // Host, supervisor or store lost while running.
inline constexpr int kExitRejected = 122;     // Rejected before any worker started.
inline constexpr int kExitStalled = 123;   // No progress for --stall-timeout, with --on-stall stop.
inline constexpr int kExitTimeout = 124;   // --timeout has expired.
inline constexpr int kExitInternal = 125;  // A bug in ivyrun or a failure of the operating system.
inline constexpr int kExitNotExecutable = 126;  // The program cannot be executed.
inline constexpr int kExitNotFound = 127;       // The program does not exist.
inline constexpr int kExitOutputClosed = 141;   // The reader of ivyrun's output has closed it.

// Exit code of ivyrun's other programs after a failure.
inline constexpr int kExitFailed = 1;

// The exit status of one process: `signal` if a signal terminated it, otherwise `code`.
struct ExitStatus {
  int code = 0;    // 0 to 255.
  int signal = 0;  // 1 to 64; 0 if the process exited by itself.

  bool is_success() const { return code == 0 && signal == 0; }
  // Returns what a shell shows in $?: the code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const ExitStatus&) const = default;
};

// Converts si_code and si_status of waitid(2) (CLD_EXITED, CLD_KILLED or CLD_DUMPED).
ExitStatus exit_status_from_wait(int cld_code, int cld_status);

// Returns "SIGKILL", or "signal 42" for a signal without a name.
std::string signal_name(int signal);

// Parses "USR1", "SIGUSR1", "usr1" or "10"; returns 0 if there is no such signal.
int signal_number(const std::string& name);

// Formats the status for people: "exit 7" or "SIGSEGV".
std::string describe(const ExitStatus& status);

}  // namespace ivy
