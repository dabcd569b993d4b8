// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/message_rings.h"

#include "comm/transports/shm/futex.h"
#include "comm/transports/shm/peer_memory.h"

namespace ivy::comm {

bool MessageRings::can_read(std::uint32_t member) const {
  return PeerMemory::can_read(segment_.member(member).probe);
}

bool MessageRings::read(std::uint32_t member, void* to, std::uint64_t address,
                        std::size_t bytes) const {
  return PeerMemory::read(segment_.member(member).probe.pid, to, address, bytes) == 0;
}

void MessageRings::sleep(std::uint32_t seen_count, std::chrono::nanoseconds at_most) {
  SleepLine& line = segment_.member(self_).mail;
  line.asleep.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_.header().failure_state.load(std::memory_order_acquire) == 0) {
    futex_wait({&line.wake_count, seen_count}, {}, at_most);
  }
  line.asleep.fetch_sub(1, std::memory_order_relaxed);
}

void MessageRings::begin_polling() {
  segment_.member(self_).mail.asleep.fetch_add(kPolling, std::memory_order_seq_cst);
}

void MessageRings::end_polling(std::uint32_t seen_count) {
  SleepLine& line = segment_.member(self_).mail;
  const std::uint32_t left = line.asleep.fetch_sub(kPolling, std::memory_order_seq_cst) - kPolling;
  // Messages that have arrived since the last check woke no sleeping thread.
  const bool is_any_asleep = left != 0 && left < kPolling;
  if (is_any_asleep && line.wake_count.load(std::memory_order_seq_cst) != seen_count) {
    futex_wake_all(line.wake_count);
  }
}

void MessageRings::notify(SleepLine& line) {
  // Count in any case, so that a thread that began to check before this does not go to sleep
  // afterwards.
  line.wake_count.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t asleep = line.asleep.load(std::memory_order_seq_cst);
  if (asleep != 0 && asleep < kPolling) futex_wake_all(line.wake_count);
}

void MessageRings::wake_all(SleepLine& line) {
  line.wake_count.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst) % kPolling != 0) futex_wake_all(line.wake_count);
}

}  // namespace ivy::comm
