// SPDX-License-Identifier: Apache-2.0
// The warden: parent of one supervisor, and the last process to exit. It waits, reaps what the
// kernel hands it as a subreaper, and when the supervisor has ended, however it did, ends all
// processes of the job, removes the cgroup and the job directory, and exits with the supervisor's
// code. It has no sockets, so nothing that a peer sends can hurt it. Thread: the process's only
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
  int transport_fd = 3;  // A connected stream socket; given to the supervisor.
  TransportEnd transport = TransportEnd::kLocal;
  // The task of the scheduler's step that holds us: then we make no scope and no cgroup. 0: none.
  pid_t step_task = 0;
  std::string cgroup;  // Directory of a cgroup v2 to live in; empty: stay in ours.
  std::string record;  // File for the WardenRecord; empty: none is written.
  // Our parent is a subreaper that stays until the supervisor has ended: we need not wait for it.
  bool parent_reaps = false;
};

using SupervisorMain = int (*)(const SupervisorStart&);

// From the arguments behind "warden": --job HEX32 --host N --transport-fd N --transport local|relay
// [--cgroup DIR] [--record FILE], both absolute, [--step PID] [--reaper parent].
Result<WardenStart> parse_warden_arguments(int argc, char** argv);

// Moves this process into `start.cgroup`, before it has any child. Nothing to do when it is empty.
Result<void> enter_cgroup(const WardenStart& start);
// Writes to the transport why there will be no supervisor, and returns kWardenFailed.
int refuse_to_start(const WardenStart& start, const Error& why);

// The record that a warden writes, mode 0600, always atomically: once when it starts, and again
// when no process of the job is left. An agent that was not running in between learns everything
// from it.
struct WardenRecord {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // From /proc/PID/stat: with the pid it identifies the process.
  std::optional<int> exit_code;  // The supervisor's (kSupervisor*, or 128 + signal), kWardenFailed.
};
// Converts a record to text and back; nothing when the text is no record. Pure.
std::string encode_warden_record(const WardenRecord& record);
std::optional<WardenRecord> parse_warden_record(std::string_view text);

// Becomes the warden, forks the supervisor and returns its exit code (128 + signal) when nothing of
// the job is left. The process should then _exit. When it cannot start, it writes one line to the
// transport, kFailurePrefix and a text, and returns kWardenFailed.
int run_warden(const WardenStart& start, SupervisorMain supervisor_main);

// Precedes the one line on a transport that tells why there will be no supervisor on it.
inline constexpr char kFailurePrefix[] = "\x01ivy:fail ";
inline constexpr int kWardenFailed = 4;

// A process that cannot be ended in this time (it is in uninterruptible sleep) has a SIGKILL
// pending and is left to init.
inline constexpr int kWardenPatienceMs = 30'000;

}  // namespace ivy
