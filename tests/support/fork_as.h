// SPDX-License-Identifier: Apache-2.0
// Starts a process with a chosen pid, as the system may reuse it.
#pragma once

#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace ivy::test {

// Returns a process that has the pid of one that has exited, and that keeps running; -1 if the
// system does not allow that.
inline pid_t fork_as(pid_t number) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uint64_t>(&number);
  arguments.set_tid_size = 1;
  const auto child = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
  while (child == 0) pause();
  return child;
}

}  // namespace ivy::test
