// The warden: parent of one supervisor, and the last to leave. It waits, reaps what the kernel
// hands it as a subreaper, and when the supervisor has ended in whatever way, it ends everything of
// the job, removes the cgroup and the job directory, and exits with the supervisor's code. It has
// no sockets, so nothing that a peer sends can hurt it. Thread: the process's only thread.
#pragma once

#include <cstdint>
#include <string>

#include "agent/node/supervisor.h"

namespace ivy {

struct WardenStart {
  std::string job_id;  // 32 hexadecimal digits.
  std::uint32_t host = 0;
  int carrier_fd = 3;  // A connected stream socket; given to the supervisor.
  CarrierKind carrier = CarrierKind::kLocal;
};

using SupervisorMain = int (*)(const SupervisorStart&);

// From the arguments behind "warden": --job HEX32 --host N --carrier-fd N --carrier local|relay.
Result<WardenStart> parse_warden_arguments(int argc, char** argv);

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
