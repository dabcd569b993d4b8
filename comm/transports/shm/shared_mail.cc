// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_mail.h"

#include "comm/transports/shm/futex.h"
#include "comm/transports/shm/peer_memory.h"

namespace ivy::comm {

bool SharedMail::can_read(std::uint32_t member) const {
  return PeerMemory::can_read(segment_.member(member).probe);
}

bool SharedMail::read(std::uint32_t member, void* to, std::uint64_t address,
                      std::size_t bytes) const {
  return PeerMemory::read(segment_.member(member).probe.pid, to, address, bytes) == 0;
}

void SharedMail::sleep(std::uint32_t bell, std::chrono::nanoseconds at_most) {
  SleepLine& line = segment_.member(self_).mail;
  line.asleep.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_.header().failure_state.load(std::memory_order_acquire) == 0) {
    futex_wait({&line.doorbell, bell}, {}, at_most);
  }
  line.asleep.fetch_sub(1, std::memory_order_relaxed);
}

void SharedMail::begin_looking() {
  segment_.member(self_).mail.asleep.fetch_add(kLooking, std::memory_order_seq_cst);
}

void SharedMail::end_looking(std::uint32_t bell) {
  SleepLine& line = segment_.member(self_).mail;
  const std::uint32_t left = line.asleep.fetch_sub(kLooking, std::memory_order_seq_cst) - kLooking;
  // Messages that arrived since the last check woke no sleeper.
  const bool is_any_asleep = left != 0 && left < kLooking;
  if (is_any_asleep && line.doorbell.load(std::memory_order_seq_cst) != bell) {
    futex_wake_all(line.doorbell);
  }
}

void SharedMail::ring(SleepLine& line) {
  // Count in every case, so that a look that began before this is not followed by a sleep.
  line.doorbell.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t asleep = line.asleep.load(std::memory_order_seq_cst);
  if (asleep != 0 && asleep < kLooking) futex_wake_all(line.doorbell);
}

void SharedMail::wake(SleepLine& line) {
  line.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst) % kLooking != 0) futex_wake_all(line.doorbell);
}

}  // namespace ivy::comm
