// How the exit of a process is recorded, and the exit codes of ivyrun itself. Thread: any. Pure.
#pragma once

#include <string>

namespace ivy {

// ivyrun's own exit codes. A worker may return the same numbers: the summary says which process
// returned it.
inline constexpr int kExitUsage = 2;       // Usage, configuration or hostfile; nothing started.
inline constexpr int kExitPreempted = 75;  // Stopped by --preempt-signal, and all ranks returned 0.
inline constexpr int kExitHostsNotUp = 120;  // Hosts did not come up in time.
inline constexpr int kExitHostLost = 121;    // Host, supervisor or store lost while running.
inline constexpr int kExitRefused = 122;     // Refused before any worker started.
inline constexpr int kExitStalled = 123;   // Nothing had moved for too long, with --on-stall stop.
inline constexpr int kExitTimeout = 124;   // The time of --timeout is over.
inline constexpr int kExitInternal = 125;  // A bug or an operating system failure of ours.
inline constexpr int kExitNotExecutable = 126;  // The program cannot be executed.
inline constexpr int kExitNotFound = 127;       // The program does not exist.
inline constexpr int kExitOutputClosed = 141;   // The reader of our output went away.

// What our other programs return for a failure.
inline constexpr int kExitFailed = 1;

// How one process ended. Exactly one of the two is meaningful.
struct ExitStatus {
  int code = 0;    // 0..255 when signal == 0.
  int signal = 0;  // 1..64 when a signal ended it.

  bool success() const { return code == 0 && signal == 0; }
  // What a shell would show: the code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const ExitStatus&) const = default;
};

// From the si_code and si_status pair of waitid(2) (CLD_EXITED, CLD_KILLED or CLD_DUMPED).
ExitStatus exit_status_from_wait(int cld_code, int cld_status);

// "SIGKILL", or "signal 42" for one without a name.
std::string signal_name(int signal);

// From "USR1", "SIGUSR1", "usr1" or "10" to a number, or 0 when there is no such signal.
int signal_number(const std::string& name);

// Says how a process ended: "exit 7" or "SIGSEGV".
std::string describe(const ExitStatus& status);

}  // namespace ivy
