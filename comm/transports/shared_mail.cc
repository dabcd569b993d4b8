#include "comm/transports/shared_mail.h"

#include "comm/transports/futex.h"

namespace ivy::comm {

void SharedMail::sleep(std::uint32_t bell, std::chrono::nanoseconds at_most) {
  SleepLine& line = segment_.member(self_).mail;
  line.asleep.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_.header().failure_state.load(std::memory_order_acquire) == 0) {
    futex_wait({&line.doorbell, bell}, {}, at_most);
  }
  line.asleep.fetch_sub(1, std::memory_order_relaxed);
}

void SharedMail::ring(SleepLine& line) {
  // Count in every case, so that a look that began before this is not followed by a sleep.
  line.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst) != 0) futex_wake_all(line.doorbell);
}

}  // namespace ivy::comm
