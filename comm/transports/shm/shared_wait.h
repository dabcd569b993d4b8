// SPDX-License-Identifier: Apache-2.0
// Waits until a counter of another member in shared memory has reached a value. The wait spins if
// there is a processor for every member, then yields, then sleeps on this member's futex. A member
// that stores a counter wakes only members that have announced that they sleep.
//
// With several members per processor (overloaded), each wake-up costs a scheduling round. So
// members yield only while that helps, are woken only by the member that they wait for, and a
// member that waits for all entries is woken by the last one.
//
// Functions return false if the communicator is broken. Thread: the operation's.
#pragma once

#include <utility>

#include "comm/transports/liveness/wait_watch.h"
#include "comm/transports/shm/shared_members.h"
#include "comm/transports/shm/shared_segment.h"
#include "comm/transports/shm/wait_policy.h"

namespace ivy::comm {

// Memory that is read right after the wait. It is prefetched together with the counter.
struct FetchedWith {
  const std::uint8_t* begin = nullptr;
  std::size_t bytes = 0;
  void fetch() const {
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(begin + at, 0, 3);
  }
};

class SharedWait {
 public:
  SharedWait(SharedSegment& segment, const SharedGroupOptions& options, WaitPolicy& policy);

  WaitPolicy& policy() const { return policy_; }
  // Notified once, when the operation has been entered. Null, or must outlive the operation.
  void set_entry_watch(EntryWatch* watch) { entry_watch_ = watch; }
  void notify_entered() {
    if (entry_watch_ != nullptr) std::exchange(entry_watch_, nullptr)->entered();
  }

  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_release);
    wake_if_asleep();
  }
  bool await(const std::atomic<std::uint64_t>& counter, std::uint64_t value, std::uint32_t member) {
    if (counter.load(std::memory_order_acquire) >= value) return true;
    return await_slowly(counter, value, member, {});
  }
  // The slow path of await(), after a first check of the counter. Prefetches `with` while it waits.
  bool await_slowly(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                    std::uint32_t member, const FetchedWith& with);

  // If members are overloaded, arrivals are also counted, so that a rank waiting for all others
  // sleeps only once.
  void count_arrival();
  bool await_arrivals(std::uint64_t all) {
    return await_slowly(segment_.header().arrivals, all, kAnyAbsentMember, {});
  }

 private:
  // Stands for any member that has not entered yet.
  static constexpr std::uint32_t kAnyAbsentMember = ~std::uint32_t{0};

  void wake_if_asleep() {
    // The store above must be visible before the check for sleepers; see sleep(). If a member that
    // is about to sleep makes the kernel run a barrier on every processor, the publisher needs no
    // barrier, which would wait here for the cache line from the other processor.
    if (has_remote_barrier_) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    if (header_.sleepers.load(std::memory_order_relaxed) != 0) wake_waiting_for(self_ + 1);
  }
  void wake_waiting_for(std::uint32_t asleep);
  // Return true if the counter has reached the value, or false if the caller must check for a
  // failure and sleep.
  bool spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value);
  bool yield(const std::atomic<std::uint64_t>& counter, std::uint64_t value);
  // `seen_event_count` is event_count() before the last check of the failure detector.
  void sleep(const std::atomic<std::uint64_t>& counter, std::uint64_t value, std::uint32_t member,
             std::uint32_t seen_event_count);
  const std::atomic<std::uint32_t>* event_count() const;
  std::uint32_t first_absent(std::uint64_t number) const;

  SharedSegment& segment_;
  SegmentHeader& header_;
  WaitPolicy& policy_;
  const std::uint32_t size_;
  const std::uint32_t self_;
  const bool is_overloaded_;
  const bool has_processor_each_;
  const std::uint32_t spins_;  // Rounds of the processor's pause.
  const bool has_remote_barrier_;
  int yields_;                    // For the next wait; see yield().
  int waits_without_yields_ = 0;  // Counts the waits since yields_ became 0.
  EntryWatch* entry_watch_ = nullptr;
};

}  // namespace ivy::comm
