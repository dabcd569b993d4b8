// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/clone_process.h"

#include <linux/futex.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "proto/os/process.h"

namespace ivy {
namespace {

// waitid()'s P_PIDFD, which glibc 2.36 declares only with newer kernel headers.
constexpr auto kWaitPidfd = static_cast<idtype_t>(3);

[[maybe_unused]] clone_args clone_arguments(int cgroup_fd, int* pidfd) {
  clone_args arguments{};
  arguments.flags = CLONE_PIDFD;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(pidfd);
  arguments.exit_signal = SIGCHLD;
  if (cgroup_fd >= 0) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  }
  return arguments;
}

// Returns twice, like fork; the child shares no memory.
pid_t raw_clone(int cgroup_fd, int* pidfd) {
#if IVY_RAW_CLONE
  const clone_args arguments = clone_arguments(cgroup_fd, pidfd);
  return static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
#else
  (void)cgroup_fd;
  (void)pidfd;
  errno = ENOSYS;
  return -1;
#endif
}

}  // namespace

bool is_final(int error) { return error == EAGAIN || error == ENOMEM; }

ClonedProcess clone_process(int cgroup_fd) {
  ClonedProcess child;
  child.pid = raw_clone(cgroup_fd, &child.pidfd);
  if (child.pid >= 0) return child;
  child.error = errno;
  if (is_final(child.error)) return child;
  child.must_join_cgroup = cgroup_fd >= 0;
  child.pid = fork();
  child.error = child.pid < 0 ? errno : 0;
  if (child.pid <= 0) return child;
  child.pidfd = open_pidfd(child.pid);
  if (child.pidfd < 0) {
    child.error = errno;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    child.pid = -1;
  }
  return child;
}

void CloneStack::wait() {
  for (;;) {
    const std::uint32_t now = is_inside_.load(std::memory_order_acquire);
    if (now == 0) return;
    // Woken by the kernel, whose wake is not process-private.
    syscall(SYS_futex, &is_inside_, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

ClonedProcess CloneStack::clone_process(int cgroup_fd, int exit_signal, void (*child_main)(void*),
                                        void* argument) {
  ClonedProcess child;
#if IVY_SHARED_CLONE
  stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  is_inside_ = 1;
  clone_args arguments = clone_arguments(cgroup_fd, &child.pidfd);
  arguments.flags |= CLONE_VM | CLONE_CHILD_CLEARTID;
  arguments.exit_signal = static_cast<std::uint64_t>(exit_signal);
  arguments.child_tid = reinterpret_cast<std::uintptr_t>(&is_inside_);
  arguments.stack = reinterpret_cast<std::uintptr_t>(stack_.get());
  arguments.stack_size = kStackBytes;
  long result = SYS_clone3;
  asm volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "movq %%rbx, %%rdi\n\t"
      "callq *%%rdx\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(&arguments), "S"(sizeof arguments), "d"(child_main), "b"(argument)
      : "rcx", "r11", "memory", "cc");
  if (result < 0) is_inside_ = 0;
  child.pid = result < 0 ? -1 : static_cast<pid_t>(result);
  child.error = result < 0 ? static_cast<int>(-result) : 0;
#else
  (void)cgroup_fd;
  (void)exit_signal;
  (void)child_main;
  (void)argument;
  child.error = ENOSYS;
#endif
  return child;
}

AllSignalsBlocked::AllSignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before_);
}

AllSignalsBlocked::~AllSignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

// The trial process sends no signal when it exits: the supervisor's sweep must not take it for an
// orphan of the job.
CgroupProbe::CgroupProbe(int cgroup_fd) {
  const AllSignalsBlocked blocked;
  ClonedProcess child = clone_stack_.clone_process(
      cgroup_fd, 0, [](void*) { leave(0); }, nullptr);
  if (child.pid > 0) {
    pidfd_.reset(child.pidfd);
    return;
  }
  // If memory or process ids are exhausted, do not try the other method: it needs even more of
  // them.
  if (!is_final(child.error)) child = clone_process(cgroup_fd);
  if (child.pid == 0) leave(child.must_join_cgroup ? -static_cast<int>(join_cgroup(cgroup_fd)) : 0);
  error_ = child.error;
  if (child.pid < 0) return;
  const Descriptor pidfd(child.pidfd);
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  error_ = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

void CgroupProbe::wait() {
  if (!pidfd_) return;
  siginfo_t info{};
  while (waitid(kWaitPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED | __WALL) != 0 &&
         errno == EINTR) {
  }
  pidfd_.reset();
}

CgroupProbe::~CgroupProbe() { wait(); }

}  // namespace ivy
