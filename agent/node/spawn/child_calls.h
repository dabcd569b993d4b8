// SPDX-License-Identifier: Apache-2.0
// System calls of a child between its creation and exec. The child may share its parent's memory,
// so nothing here touches errno, allocates or takes a lock. Thread: the child's only one.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

// Sanitizers keep per-process state that only their wrapper of fork() preserves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IVY_RAW_CLONE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IVY_RAW_CLONE 0
#else
#define IVY_RAW_CLONE 1
#endif
#else
#define IVY_RAW_CLONE 1
#endif

// A child that shares our memory needs a few instructions of assembler: to switch to its own stack,
// and to call the kernel without touching errno, which it shares with us.
#if IVY_RAW_CLONE && defined(__x86_64__)
#define IVY_SHARED_CLONE 1
#else
#define IVY_SHARED_CLONE 0
#endif

namespace ivy {
namespace child {

inline long word(long value) { return value; }
template <class T>
long word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

// Returns the kernel's result: a value, or -errno.
template <class A = long, class B = long, class C = long, class D = long>
long call(long number, A a = 0, B b = 0, C c = 0, D d = 0) {
#if IVY_SHARED_CLONE
  long result = number;
  asm volatile(
      "movq %[fourth], %%r10\n\t"
      "syscall"
      : "+a"(result)
      : "D"(word(a)), "S"(word(b)), "d"(word(c)), [fourth] "r"(word(d))
      : "rcx", "r10", "r11", "memory", "cc");
  return result;
#else
  const long result = syscall(number, word(a), word(b), word(c), word(d));
  return result < 0 ? -errno : result;
#endif
}

}  // namespace child

[[noreturn]] inline void leave(int code) {
  for (;;) child::call(SYS_exit_group, code);
}

// Moves this process into a cgroup. Returns 0 or -errno.
inline long join_cgroup(int cgroup_fd) {
  const long fd = child::call(SYS_openat, cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return fd;
  const long written = child::call(SYS_write, fd, "0", 1);
  child::call(SYS_close, fd);
  return written < 0 ? written : 0;
}

}  // namespace ivy
