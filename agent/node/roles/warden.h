// The warden: parent of one supervisor, and the last to leave. It waits, reaps what the kernel
// hands it as a subreaper, and when the supervisor has ended in whatever way, it ends everything of
// the job, removes the cgroup and the job directory, and exits with the supervisor's code. It has
// no sockets, so nothing that a peer sends can hurt it. Thread: the process's only thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/node/supervisor/supervisor.h"
#include "proto/contract/status.h"

namespace ivy {

struct WardenStart {
  std::string job_id;  // 32 hexadecimal digits.
  std::uint32_t host = 0;
  int carrier_fd = 3;  // A connected stream socket; given to the supervisor.
  CarrierKind carrier = CarrierKind::kLocal;
  // The task of the scheduler's step that holds us: no scope and no cgroup of our own. 0: none.
  pid_t step_task = 0;
  std::string cgroup;  // Directory of a cgroup v2 to live in; empty: where we were born.
  std::string record;  // Where to tell who we are and how the job ended; empty: nobody asks.
};

using SupervisorMain = int (*)(const SupervisorStart&);

// From the arguments behind "warden": --job HEX32 --host N --carrier-fd N --carrier local|relay
// [--cgroup DIR] [--record FILE], both absolute, [--step PID].
Result<WardenStart> parse_warden_arguments(int argc, char** argv);

// Moves this process into `start.cgroup`, before it has any child. Nothing to do when it is empty.
Result<void> enter_cgroup(const WardenStart& start);
// Says on the carrier why there will be no supervisor, and returns kWardenFailed.
int refuse_to_start(const WardenStart& start, const Error& why);

// What a warden tells in its record, mode 0600, always whole: written when it begins and again when
// nothing of the job is left. An agent that was not there meanwhile knows all by it.
struct WardenRecord {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // Of /proc/PID/stat: with the pid, an identity.
  std::optional<int> exit_code;  // The supervisor's (kSupervisor*, or 128 + signal), kWardenFailed.
};
// Text of a record and back; nothing when it is none. Pure.
std::string encode_warden_record(const WardenRecord& record);
std::optional<WardenRecord> parse_warden_record(std::string_view text);

// Becomes the warden, forks the supervisor and returns its exit code (128 + signal) when nothing of
// the job is left. The process should then _exit. What keeps it from starting is written to the
// carrier as one line, kFailurePrefix and a text, before kWardenFailed is returned.
int run_warden(const WardenStart& start, SupervisorMain supervisor_main);

// Precedes the one line that says on a carrier why there will be no supervisor on it.
inline constexpr char kFailurePrefix[] = "\x01ivy:fail ";
inline constexpr int kWardenFailed = 4;

// What cannot be ended in this time (a process in uninterruptible sleep) has a SIGKILL waiting for
// it and is left to init.
inline constexpr int kWardenPatienceMs = 30'000;

}  // namespace ivy
