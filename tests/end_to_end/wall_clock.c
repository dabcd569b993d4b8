// SPDX-License-Identifier: Apache-2.0
/* Preloaded: the wall clock of one process is off by the number of seconds in the file $WALL_CLOCK,
 * and jumps when the file is changed. Monotonic clocks are not changed. Deadlines in wall clock
 * time are converted to the kernel's time, because a clock that really jumps would not delay them
 * by an hour either.
 *
 * libfaketime is not used: if it does not change monotonic clocks, its version in Debian 12 makes
 * clock_nanosleep fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A monotonic clock of a test machine never has such a value. */
static const time_t kWallClockTimes = 1000000000;

static long offset(void) {
  const char* path = getenv("WALL_CLOCK");
  char text[32] = "";
  int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  return count > 0 ? atol(text) : 0;
}

/* Returns the deadline in the kernel's time. */
static struct timespec kernel_time(const struct timespec* deadline) {
  struct timespec result = *deadline;
  if (result.tv_sec > kWallClockTimes) result.tv_sec -= offset();
  return result;
}

static long (*real_syscall(void))(long, ...) {
  static long (*found)(long, ...);
  if (found == NULL) found = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return found;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = (int)real_syscall()(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += offset();
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now != NULL) *now = exact.tv_sec;
  return exact.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict deadline) {
  static int (*real)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  if (real == NULL)
    real = (int (*)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*))dlsym(
        RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec reported = kernel_time(deadline);
  return real(condition, mutex, &reported);
}

long syscall(long number, ...) {
  long words[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i) words[i] = va_arg(list, long);
  va_end(list);
  struct timespec reported;
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) != 0 && words[3] != 0) {
    reported = kernel_time((const struct timespec*)words[3]);
    words[3] = (long)&reported;
  }
  return real_syscall()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
