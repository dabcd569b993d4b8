// SPDX-License-Identifier: Apache-2.0
// The warden: the parent of one supervisor, and the last process to exit. It waits, and reaps the
// orphans that it gets as a subreaper. When the supervisor has exited for any reason, the warden
// kills all processes of the job, removes the cgroup and the job directory, and exits with the
// supervisor's code. It has no sockets, so no peer can attack it. Thread: the process's only
// thread.
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
  std::string job_id;
  std::uint32_t host = 0;
  int link_fd = 3;  // A connected stream socket, passed to the supervisor.
  LinkPeer peer = LinkPeer::kLauncher;
  // The task of the scheduler's step that runs us, in which case no scope or cgroup is created; 0
  // if none.
  pid_t step_task = 0;
  std::string cgroup;  // Directory of the cgroup v2 to move into; empty to stay in ours.
  std::string record;  // File for the WardenRecord; empty if none is written.
  // Our parent is a subreaper that outlives the supervisor, so we need not wait for the supervisor.
  bool parent_reaps = false;
};

using SupervisorMain = int (*)(const SupervisorStart&);

// Parses the arguments after "warden": --job HEX32 --host N --transport-fd N --transport
// local|relay [--cgroup DIR] [--record FILE], both absolute, [--step PID] [--reaper parent].
// The names must stay: an agent of another build passes these arguments, too.
Result<WardenStart> parse_warden_arguments(int argc, char** argv);

// Moves this process, which must not have a child yet, into `start.cgroup`. Does nothing if that is
// empty.
Result<void> enter_cgroup(const WardenStart& start);
// Writes to the link why no supervisor will start. Returns kWardenFailed.
int reject_to_start(const WardenStart& start, const Error& why);

// The record that a warden writes, atomically and with mode 0600: once when it starts, and again
// when no process of the job is left. An agent that was not running in between learns everything
// from it.
struct WardenRecord {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // From /proc/PID/stat; with the pid it identifies the process.
  std::optional<int> exit_code;  // The supervisor's (kSupervisor*, or 128 + signal), kWardenFailed.
};
// Returns the lines "warden PID START_TIME" and, once there is an exit code, "exit CODE". Pure.
std::string encode_warden_record(const WardenRecord& record);
// Returns nothing if the text does not start with such lines. Pure.
std::optional<WardenRecord> parse_warden_record(std::string_view text);

// Becomes the warden and forks the supervisor. Returns the supervisor's exit code (or 128 + signal)
// when nothing of the job is left; the process should then call _exit(). If it cannot start, it
// writes kFailurePrefix and a text in one line to the link, and returns kWardenFailed.
int run_warden(const WardenStart& start, SupervisorMain supervisor_main);

// Prefix of the line on a link that explains why no supervisor will start.
inline constexpr char kFailurePrefix[] = "\x01ivy:fail ";
inline constexpr int kWardenFailed = 4;

// A process that still exists after this time (in uninterruptible sleep) has a SIGKILL pending and
// is left to init.
inline constexpr int kWardenTimeoutMs = 30'000;

}  // namespace ivy
