// SPDX-License-Identifier: Apache-2.0
// A process with a number of the test's choosing, as the system may give it again by itself.
#pragma once

#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace ivy::test {

// A process that has the number of one that has ended, and stays; -1: the system gives no such
// number.
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
