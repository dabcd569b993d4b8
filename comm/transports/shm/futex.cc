// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace ivy::comm {
namespace {

// The C library may be too old to declare these. They are the kernel's interface, see
// futex_waitv(2).
constexpr long kFutexWaitvCall = 449;
struct WaitvEntry {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};
constexpr std::uint32_t kSize32 = 2;

// How often the second word is checked if the kernel cannot wait for two.
constexpr std::chrono::milliseconds kBlindSlice{5};

std::atomic<bool> has_waitv{true};

timespec timespec_of(std::chrono::nanoseconds time) {
  timespec out = {};
  out.tv_sec = static_cast<time_t>(time.count() / 1'000'000'000);
  out.tv_nsec = static_cast<long>(time.count() % 1'000'000'000);
  return out;
}

bool wait_for_two(const FutexWord& first, const FutexWord& second,
                  std::chrono::nanoseconds at_most) {
  WaitvEntry entries[2] = {
      {first.expected, reinterpret_cast<std::uint64_t>(first.word), kSize32, 0},
      {second.expected, reinterpret_cast<std::uint64_t>(second.word), kSize32, 0}};
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until = timespec_of(std::chrono::seconds(now.tv_sec) +
                                     std::chrono::nanoseconds(now.tv_nsec) + at_most);
  const long result = syscall(kFutexWaitvCall, entries, 2, 0, &until, CLOCK_MONOTONIC);
  return !(result < 0 && (errno == ENOSYS || errno == EPERM));
}

}  // namespace

void futex_wait(const FutexWord& first, const FutexWord& second, std::chrono::nanoseconds at_most) {
  if (second.word != nullptr) {
    if (has_waitv.load(std::memory_order_relaxed)) {
      if (wait_for_two(first, second, at_most)) return;
      has_waitv.store(false, std::memory_order_relaxed);
    }
    if (second.word->load(std::memory_order_acquire) != second.expected) return;
    at_most = std::min<std::chrono::nanoseconds>(at_most, kBlindSlice);
  }
  const timespec relative = timespec_of(at_most);
  syscall(SYS_futex, first.word, FUTEX_WAIT, first.expected, &relative, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ivy::comm
