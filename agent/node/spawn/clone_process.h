// SPDX-License-Identifier: Apache-2.0
// Starts processes, if possible directly in a cgroup and without copying our memory. Thread: the
// supervisor's only thread.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "agent/node/spawn/child_calls.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct ClonedProcess {
  pid_t pid = -1;  // 0 in the child, if the function returns twice.
  int pidfd = -1;
  bool must_join_cgroup = false;  // The child is outside the cgroup: call join_cgroup() first.
  int error = 0;
};

// Returns true if resources are short, so that no other way of starting a process would succeed.
// Other errors may be caused by a filter or an old kernel, and a simpler call may work.
bool is_final(int error);

// Returns twice, like fork(). cgroup_fd: -1 if none.
ClonedProcess clone_process(int cgroup_fd);

// The stack of a child that shares our memory until it executes its program or exits. The child
// runs concurrently with us, so this object and everything that the child uses must exist until
// wait() has returned.
class CloneStack {
 public:
  CloneStack() = default;
  CloneStack(const CloneStack&) = delete;
  CloneStack& operator=(const CloneStack&) = delete;

  // Starts a child that runs child_main(argument), which never returns; this function returns once,
  // in the parent. No page table is copied and no page is faulted in twice, which would be most of
  // the cost of a start. exit_signal: SIGCHLD, or 0 for a child that only waitid() with __WALL can
  // see. After an error that is not final, no child was started and this method is not available
  // here.
  ClonedProcess clone_process(int cgroup_fd, int exit_signal, void (*child_main)(void*),
                              void* argument);
  // Waits until the child has executed its program or exited.
  void wait();

 private:
  // The child's calls are not nested deeply; its largest variable is a buffer of 4 KiB.
  static constexpr std::size_t kStackBytes = 16u << 10;

  std::unique_ptr<std::byte[]> stack_;
  // The kernel writes 0 and wakes wait() when the child has left our memory.
  std::atomic<std::uint32_t> is_inside_{0};
};

// Prevents a signal between clone and exec from running one of the parent's handlers in the child.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked();
  ~AllSignalsBlocked();
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Proves that a process can be started in this cgroup by starting one. If clone itself puts it
// there, the proof is complete immediately, and the process exits concurrently.
class CgroupProbe {
 public:
  explicit CgroupProbe(int cgroup_fd);
  ~CgroupProbe();  // Waits for the trial process.
  CgroupProbe(const CgroupProbe&) = delete;
  CgroupProbe& operator=(const CgroupProbe&) = delete;

  int error() const { return error_; }  // 0, or the errno of the step that failed.
  // Waits until the process has left the cgroup.
  void wait();

 private:
  CloneStack clone_stack_;
  Descriptor pidfd_;
  int error_ = 0;
};

}  // namespace ivy
