// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_wait.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "comm/transports/shm/futex.h"
#include "comm/transports/shm/relax.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A processor's pause takes 5 to 150 ns, depending on its model, so it is measured once.
std::uint32_t rounds_in(std::chrono::microseconds time) {
  static const double nanoseconds_per_round = [] {
    constexpr int kRounds = 2000;
    double best = 1e9;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::int64_t start = monotonic_ns();
      for (int round = 0; round < kRounds; ++round) relax();
      best = std::min(best, static_cast<double>(monotonic_ns() - start) / kRounds);
    }
    return std::max(best, 1.0);
  }();
  return static_cast<std::uint32_t>(static_cast<double>(time.count()) * 1000 /
                                    nanoseconds_per_round);
}

// Registers this process for membarrier(2), "global expedited": a process that is about to sleep
// makes the kernel run a memory barrier on the processors of all registered processes, so that
// publishers need no barrier. Returns false if the kernel or a sandbox does not support it. Takes
// some milliseconds if the process already has threads.
bool join_remote_barriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

// After this call, the earlier stores of every registered process are visible, and its later loads
// see this process's earlier stores.
void remote_barrier() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); }

constexpr std::uint32_t kRoundsBeforeClock = 200;

// Yields before a wait sleeps. With more ranks than processors, they let the awaited rank run. They
// return immediately if each rank is a separate scheduling group (autogroup creates one for each
// session).
constexpr int kYieldsMax = 16;
// Number of waits after which yields that did not help are tried again.
constexpr int kWaitsWithoutYields = 32;
// A sleeper checks for failures at least this often, even if a wake-up was lost.
constexpr milliseconds kSleepSlice{200};

}  // namespace

SharedWait::SharedWait(SharedSegment& segment, const SharedGroupOptions& options,
                       WaitPolicy& policy)
    : segment_(segment),
      header_(segment.header()),
      policy_(policy),
      size_(options.size()),
      self_(options.self),
      is_overloaded_(options.is_overloaded),
      has_processor_each_(options.has_processor_each),
      spins_(options.has_processor_each ? rounds_in(options.spin) : 0),
      has_remote_barrier_(spins_ != 0 && join_remote_barriers()),
      yields_(kYieldsMax) {}

bool SharedWait::await_slowly(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                              std::uint32_t member, const FetchedWith& with) {
  notify_entered();
  // Reading the clock takes as long as a short wait (as do the pauses of some processors), so spin
  // first.
  for (std::uint32_t round = std::min(spins_, kRoundsBeforeClock); round > 0; --round) {
    relax();
    with.fetch();
    if (counter.load(std::memory_order_acquire) >= value) return true;
  }
  policy_.deadline().start();
  while (!spin(counter, value)) {
    // Check the counter once more, because a rank that has died may have done its part before.
    const std::uint32_t waited_for =
        member == kAnyAbsentMember ? first_absent(value / size_) : member;
    // Read before the check, so that an event after the check ends the sleep.
    const std::atomic<std::uint32_t>* const events = event_count();
    const std::uint32_t seen_event_count =
        events != nullptr ? events->load(std::memory_order_acquire) : 0;
    if (!policy_.may_continue(waited_for)) return counter.load(std::memory_order_acquire) >= value;
    sleep(counter, value, member, seen_event_count);
    if (counter.load(std::memory_order_acquire) >= value) return true;
  }
  return true;
}

bool SharedWait::spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  for (std::uint32_t round = 0; round < spins_; ++round) {
    relax();
    if (counter.load(std::memory_order_acquire) >= value) return true;
    // All members share this line, and it is written only once, at the end, so reading it is free.
    if (header_.failure_state.load(std::memory_order_relaxed) != 0) return false;
  }
  return yield(counter, value);
}

// If members are overloaded, yields half as often each time that it did not help, and finally only
// every kWaitsWithoutYields waits.
bool SharedWait::yield(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  if (yields_ == 0 && ++waits_without_yields_ == kWaitsWithoutYields) {
    waits_without_yields_ = 0;
    yields_ = kYieldsMax;
  }
  for (int round = 0; round < yields_; ++round) {
    sched_yield();
    if (counter.load(std::memory_order_acquire) < value) continue;
    yields_ = kYieldsMax;
    return true;
  }
  if (is_overloaded_) yields_ /= 2;
  return false;
}

// The detector's futex word, or null.
const std::atomic<std::uint32_t>* SharedWait::event_count() const {
  const FailureDetector* const detector = policy_.failure_detector();
  return detector != nullptr ? detector->wake_word() : nullptr;
}

void SharedWait::sleep(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                       std::uint32_t member, std::uint32_t seen_event_count) {
  FailureDetector* const detector = policy_.failure_detector();
  SleepLine& line = segment_.member(self_).sleep;
  const std::uint32_t seen_count = line.wake_count.load(std::memory_order_acquire);
  line.asleep.store(!is_overloaded_              ? kForAnyMember
                    : member == kAnyAbsentMember ? kForArrivals
                                                 : member + 1,
                    std::memory_order_relaxed);
  // Sequentially consistent, to pair with the fence of wake_if_asleep() or to replace it: either
  // the publisher sees the sleeper, or the sleeper sees the published value.
  header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (has_processor_each_) remote_barrier();
  const bool is_over = counter.load(std::memory_order_acquire) >= value ||
                       header_.failure_state.load(std::memory_order_acquire) != 0;
  if (!is_over) {
    nanoseconds at_most = std::min<nanoseconds>(kSleepSlice, policy_.deadline().left());
    if (detector != nullptr) at_most = std::min<nanoseconds>(at_most, detector->poll_interval());
    if (at_most > nanoseconds::zero()) {
      futex_wait({&line.wake_count, seen_count}, {event_count(), seen_event_count}, at_most);
    }
  }
  header_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  line.asleep.store(0, std::memory_order_relaxed);
}

void SharedWait::wake_waiting_for(std::uint32_t asleep) {
  for (std::uint32_t member = 0; member < size_; ++member) {
    SleepLine& line = segment_.member(member).sleep;
    const std::uint32_t waits_for = line.asleep.load(std::memory_order_relaxed);
    if (member == self_ || (waits_for != asleep && waits_for != kForAnyMember)) continue;
    line.wake_count.fetch_add(1, std::memory_order_release);
    futex_wake_all(line.wake_count);
  }
}

void SharedWait::count_arrival() {
  const std::uint64_t arrivals = header_.arrivals.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (arrivals % size_ != 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_.sleepers.load(std::memory_order_relaxed) != 0) wake_waiting_for(kForArrivals);
}

// Returns the first member that has not entered the group's operation with that number.
std::uint32_t SharedWait::first_absent(std::uint64_t number) const {
  std::uint32_t absent = self_ + 1 < size_ ? self_ + 1 : 0;
  each_other(self_, size_, [&](std::uint32_t member) {
    const EntryLine& peer_entry = segment_.member(member).entry[number & 1];
    if (peer_entry.sequence.load(std::memory_order_relaxed) >= number) return true;
    absent = member;
    return false;
  });
  return absent;
}

}  // namespace ivy::comm
