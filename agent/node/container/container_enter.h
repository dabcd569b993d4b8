// SPDX-License-Identifier: Apache-2.0
// Processes in the job's container: the one that keeps it open, and the workers that enter it.
// Thread: the process's only one, because a process with several threads cannot change its user
// namespace.
#pragma once

#include <sys/types.h>

#include "proto/contract/status.h"

namespace ivy {

// Joins the namespaces of this process: user, mount, network, IPC and host name, as far as they
// differ from our own. Its pid namespace must be ours, and we remain in our cgroup. The working
// directory is the container's root afterwards. Fails if the process has exited or is in no
// container.
Result<void> enter_container(pid_t pid);

// ivy-node container-hold SOCKET: runs in the container. Connects to the socket, sends the
// environment that the runtime has set, and exits when the other end closes.
int run_container_hold(int argc, char** argv);

// ivy-node container-enter --pid PID --directory DIR [--path PROGRAM] -- ARGUMENTS...: enters the
// container and executes the program, which is looked up in PATH there. Precedes the program of
// each worker.
int run_container_enter(int argc, char** argv);

}  // namespace ivy
