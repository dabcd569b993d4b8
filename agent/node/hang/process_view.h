// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's state of one process without touching the process. Uses only files of /proc
// that never wait for the lock of the process's memory map (unlike cmdline and environ), which a
// process in uninterruptible sleep may hold. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/spawn/process_tree.h"

namespace ivy {

struct ProcessView {
  ProcessStat stat;
  std::string waiting_in;    // Kernel function; empty if running, or if hidden.
  std::string system_call;   // "202 0x7f... 0x189 ..."; empty in the same cases.
  std::string kernel_stack;  // Only root may read it.
  std::uint32_t threads = 0;
  std::string threads_in;  // "12 futex_wait_queue, 3 ep_poll", most frequent first.
  std::uint64_t cpu_ticks = 0;
  std::uint64_t caught_signals = 0;  // Bit N - 1: signal N has a handler.
};

// Returns false if the process has exited.
bool read_process_view(pid_t pid, ProcessView& out);

// Returns the number of context switches of all threads except the main one, or std::nullopt if one
// of those threads is running or there are too many to check. If two calls return the same number,
// the threads slept in between.
std::optional<std::uint64_t> switches_of_sleeping_threads(pid_t pid);

// Returns the process to examine. A worker is often a shell that waits for the program, so this
// follows shells down to their only or oldest living child, at most eight levels.
pid_t process_below_shells(pid_t pid, const std::vector<ProcessStat>& all);

// Returns true if a descriptor of the process refers to this file.
bool holds_open(pid_t pid, const std::string& path);

// Returns true if its program is a Python interpreter.
bool runs_python(pid_t pid);

}  // namespace ivy
