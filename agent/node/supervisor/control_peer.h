// The process at the other end of a control socket, and how it ended. Thread: any.
#pragma once

#include <sys/types.h>

#include <optional>

#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"

namespace ivy {

// The process that connected, as the kernel reports it.
struct ControlPeer {
  pid_t pid = 0;   // In our pid namespace; 0: in one that we cannot see.
  int pidfd = -1;  // The caller closes it. -1: not available; the socket's end must do.
  uid_t uid = 0;
};

// FailedPrecondition when the process has ended already.
Result<ControlPeer> peer_of(int socket_fd);

// How the process behind a readable pidfd ended, when it is no child of ours: the kernel tells it
// from Linux 6.15 on, once the parent has reaped the process. Nothing: unknown, or not known yet.
std::optional<ExitStatus> exit_status_by_pidfd(int pidfd);

}  // namespace ivy
