// SPDX-License-Identifier: Apache-2.0
// Functions of newer C libraries that libivycomm needs and glibc 2.28 lacks. They are linked,
// hidden, into the library that the wheel contains for such systems
// (scripts/packaging/portable.cmake), in addition to older_glibc.cc.
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#define IVY_HIDDEN extern "C" __attribute__((visibility("hidden")))

// Since glibc 2.32 this variable says whether atomic counting may be omitted. It may not.
IVY_HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

// Since glibc 2.30. Waits in steps, so that a change of the wall clock delays it by at most one
// step.
IVY_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  constexpr std::int64_t kStep = kSecond / 10;
  const auto nanoseconds = [](const timespec& time) {
    return static_cast<std::int64_t>(time.tv_sec) * kSecond + time.tv_nsec;
  };
  timespec now{};
  clock_gettime(clock, &now);
  const std::int64_t left = nanoseconds(*until) - nanoseconds(now);
  if (left <= 0) return ETIMEDOUT;
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const std::int64_t end = nanoseconds(wall) + (left < kStep ? left : kStep);
  const timespec wall_end{static_cast<time_t>(end / kSecond), static_cast<long>(end % kSecond)};
  const int result = pthread_cond_timedwait(condition, mutex, &wall_end);
  // The end of a step looks like a spurious wake-up, which every caller expects.
  return result == ETIMEDOUT && left > kStep ? 0 : result;
}

// Since glibc 2.32. Messages use it to name signals.
IVY_HIDDEN const char* sigabbrev_np(int signal) noexcept {
  static constexpr std::array<const char*, 32> kNames = {
      nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  static_assert(SIGSYS == 31 && SIGSTKFLT == 16 && SIGPWR == 30, "Linux numbers signals like this");
  return signal > 0 && signal < 32 ? kNames[static_cast<std::size_t>(signal)] : nullptr;
}

// Since glibc 2.34. A descriptor that another thread opens meanwhile is close-on-exec anyway.
IVY_HIDDEN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions,
                                                        int from) noexcept {
  const auto add = [&](long fd) {
    // The call fails for a descriptor beyond the limit, which may have been lowered.
    const bool is_possible = fd >= from && fd < sysconf(_SC_OPEN_MAX);
    return is_possible ? posix_spawn_file_actions_addclose(actions, static_cast<int>(fd)) : 0;
  };
  int failed = 0;
  DIR* const open = opendir("/proc/self/fd");
  if (open == nullptr) {
    for (int fd = from; fd < 4096 && failed == 0; ++fd) failed = add(fd);
    return failed;
  }
  while (const dirent* const entry = failed == 0 ? readdir(open) : nullptr)
    failed = add(std::strtol(entry->d_name, nullptr, 10));  // 0 for "." and "..".
  closedir(open);
  return failed;
}

// Since glibc 2.29. The child stays in its parent's directory, which is harmless.
IVY_HIDDEN int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t*,
                                                    const char*) noexcept {
  return 0;
}
