// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/spawn_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

namespace ivy {
namespace {

using child::call;

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4u
#endif

[[noreturn]] void give_up(const ChildPlan& plan, ChildStep step, long result) {
  const ChildReport report{step, static_cast<int>(-result)};
  if (plan.report_fd >= 0) {
    // The report is one atomic write to the pipe; if it fails, the parent assumes that the child
    // started.
    call(SYS_write, plan.report_fd, &report, static_cast<long>(sizeof report));
  } else {
    *plan.shared_report = report;
  }
  leave(127);
}

constexpr long kKernelMaskBytes = 8;

// Resets the signals with system calls, because the C library refuses to change the signals that it
// uses itself, which a parent may ignore too.
void reset_signals() {
  // The kernel's sigaction, all zero: SIG_DFL.
  const std::array<unsigned long, 4> default_action{};
  for (int number = 1; number < _NSIG; ++number) {
    call(SYS_rt_sigaction, number, default_action.data(), 0, kKernelMaskBytes);
  }
}

void unblock_signals() {
  const unsigned long none = 0;
  call(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, kKernelMaskBytes);
}

void place_standard_descriptors(const ChildPlan& plan) {
  // First move all of them above 2, then into place: a source may itself be one of the three.
  std::array<long, 3> sources{};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ChildStep step =
        static_cast<ChildStep>(static_cast<int>(ChildStep::kStdin) + static_cast<int>(i));
    long fd = plan.standard_fds[i];
    if (fd < 0) fd = call(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC);
    sources[i] = fd < 0 ? fd : call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
    if (sources[i] < 0) give_up(plan, step, sources[i]);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ChildStep step =
        static_cast<ChildStep>(static_cast<int>(ChildStep::kStdin) + static_cast<int>(i));
    const long placed = call(SYS_dup3, sources[i], static_cast<long>(i), 0);
    if (placed < 0) give_up(plan, step, placed);
  }
}

struct DirectoryEntry {  // The kernel's linux_dirent64, as written by getdents64.
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

// For kernels before 5.11: marks every descriptor that /proc lists.
void mark_listed_descriptors() {
  const long directory =
      call(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  alignas(DirectoryEntry) std::array<char, 4096> buffer;
  long bytes = 0;
  while ((bytes = call(SYS_getdents64, directory, buffer.data(),
                       static_cast<long>(buffer.size()))) > 0) {
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer.data() + at);
      long fd = 0;
      for (const char* digit = entry->name; *digit >= '0' && *digit <= '9'; ++digit)
        fd = 10 * fd + (*digit - '0');
      if (fd >= 3) call(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
      at += entry->length;
    }
  }
  call(SYS_close, directory);
}

void close_others_on_exec() {
  constexpr long kLast = 0xffffffff;
  if (call(SYS_close_range, 3, kLast, static_cast<long>(CLOSE_RANGE_CLOEXEC)) != 0)
    mark_listed_descriptors();
}

void raise_limit(int resource) {
  rlimit limit{};  // The kernel's layout on 64 bits.
  if (call(SYS_prlimit64, 0, resource, 0, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  // Raises the soft limit at most to the hard limit, so it cannot fail.
  call(SYS_prlimit64, 0, resource, &limit, 0);
}

void set_soft_limit(int resource, std::uint64_t soft) {
  rlimit limit{};
  if (call(SYS_prlimit64, 0, resource, 0, &limit) != 0) return;
  limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
  call(SYS_prlimit64, 0, resource, &limit, 0);
}

void apply_limits(const SpawnLimits& limits) {
  for (int resource = 0; resource < SpawnLimits::kResources; ++resource)
    if (const auto& soft = limits.soft[static_cast<std::size_t>(resource)])
      set_soft_limit(resource, *soft);
  call(SYS_umask, static_cast<long>(limits.umask));
  // The system call returns 20 - nice. Most users may not set a lower value than ours.
  const long own = 20 - call(SYS_getpriority, PRIO_PROCESS, 0);
  if (limits.nice > own) call(SYS_setpriority, PRIO_PROCESS, 0, static_cast<long>(limits.nice));
}

// Errors of the memory policy are ignored: many containers forbid it, and a process that runs near
// its memory gets that memory anyway.
long bind_to_processors(const ChildPlan& plan) {
  if (plan.processors == nullptr) return 0;
  constexpr long kPreferred = 1;  // MPOL_PREFERRED of <numaif.h>, a header of libnuma.
  if (plan.memory_nodes != nullptr)
    call(SYS_set_mempolicy, kPreferred, plan.memory_nodes, plan.memory_node_bits);
  return call(SYS_sched_setaffinity, 0, plan.processors_bytes, plan.processors);
}

}  // namespace

void become_worker(const ChildPlan& plan, bool must_join_cgroup) {
  // Creates a separate process group in either case; processor_share.h explains the choice.
  long result = plan.own_session ? call(SYS_setsid) : call(SYS_setpgid, 0, 0);
  if (result < 0) give_up(plan, ChildStep::kGroup, result);
  reset_signals();
  if (must_join_cgroup) result = join_cgroup(plan.cgroup_fd);
  if (result < 0) give_up(plan, ChildStep::kCgroup, result);
  // After joining the cgroup, which limits the available processors.
  result = bind_to_processors(plan);
  if (result < 0) give_up(plan, ChildStep::kBind, result);
  place_standard_descriptors(plan);
  close_others_on_exec();
  raise_limit(RLIMIT_MEMLOCK);
  // Restore the user's limit, which was ours before leave_no_core().
  if (plan.core_limit) set_soft_limit(RLIMIT_CORE, *plan.core_limit);
  if (plan.limits) apply_limits(*plan.limits);
  // Yama's ptrace_scope 1 lets only ancestors attach. This also admits processes that our parent
  // starts: the debuggers that show where this process hangs. Kernels without Yama return an error,
  // which does not matter.
  call(SYS_prctl, PR_SET_PTRACER, call(SYS_getppid));
  result = call(SYS_chdir, plan.working_directory);
  if (result != 0) give_up(plan, ChildStep::kChdir, result);
  unblock_signals();
  result = call(SYS_execve, plan.executable, plan.arguments, plan.environment);
  give_up(plan, ChildStep::kExec, result);
}

}  // namespace ivy
