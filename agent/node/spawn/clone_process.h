// SPDX-License-Identifier: Apache-2.0
// Starts processes, if possible straight into a cgroup and without copying our memory. Thread: the
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
  pid_t pid = -1;  // 0 in the child, where this returns twice.
  int pidfd = -1;
  bool must_join_cgroup = false;  // The child is outside the cgroup: call join_cgroup() first.
  int error = 0;
};

// True if no other way of starting a process would help: resources are short. Other errors may
// come from a filter or an old kernel that a simpler way gets past.
bool is_final(int error);

// Returns twice, like fork. cgroup_fd -1: none.
ClonedProcess clone_process(int cgroup_fd);

// The stack of a child that shares our memory until it executes its program or exits. It runs
// beside us meanwhile, so this and all that the child uses must stay until wait() has returned.
class CloneStack {
 public:
  CloneStack() = default;
  CloneStack(const CloneStack&) = delete;
  CloneStack& operator=(const CloneStack&) = delete;

  // Returns once: the child runs child_main(argument), which never returns. No page table is copied
  // and no page is faulted in twice, which is most of what a start costs. exit_signal: SIGCHLD, or
  // 0 for a child that only waitid with __WALL sees. After an error that is not final this way is
  // not available here, and nothing has happened.
  ClonedProcess clone_process(int cgroup_fd, int exit_signal, void (*child_main)(void*),
                              void* argument);
  // Waits until the child has executed its program or exited.
  void wait();

 private:
  // The child's calls are not nested deeply; its largest variable is a buffer of 4 KiB.
  static constexpr std::size_t kStackBytes = 16u << 10;

  std::unique_ptr<std::byte[]> stack_;
  std::atomic<std::uint32_t> is_inside_{0};  // The kernel writes 0 and wakes when it has left.
};

// Keeps a signal between clone and exec from running a handler of the parent's in the child.
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

  int error() const { return error_; }  // 0, or the errno of the refusal.
  // Waits until the process has left the cgroup.
  void wait();

 private:
  CloneStack place_;
  Descriptor pidfd_;
  int error_ = 0;
};

}  // namespace ivy
