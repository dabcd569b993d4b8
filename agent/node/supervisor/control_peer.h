// Who is at the other end of a control socket, and how that process ended. Thread: any.
#pragma once

#include <sys/types.h>

#include <optional>

#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"

namespace ivy {

// The process that connected, by the kernel's word.
struct ControlPeer {
  pid_t pid = 0;   // In our pid namespace; 0: it is in one that we do not see.
  int pidfd = -1;  // The caller closes it. -1: cannot be had; the socket's end must do.
  uid_t uid = 0;
};

// FailedPrecondition when it has ended already.
Result<ControlPeer> peer_of(int socket_fd);

// How the process behind a readable pidfd ended, when it is no child of ours: the kernel says it
// from Linux 6.15 on, once its parent has reaped it. Nothing: not known, or not yet.
std::optional<ExitStatus> exit_status_by_pidfd(int pidfd);

}  // namespace ivy
