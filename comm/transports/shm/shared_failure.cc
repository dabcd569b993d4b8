// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_failure.h"

#include "comm/transports/shm/futex.h"
#include "comm/transports/shm/message_rings.h"

namespace ivy::comm {

void SharedFailure::break_with(const Failure& failure) {
  {
    const std::lock_guard lock(finding_);  // Any thread of this member may find a failure.
    if (is_broken()) return;
    segment_.member(self_).failure = failure;
    std::uint32_t none = 0;
    if (!state().compare_exchange_strong(none, self_ + 1)) return;
  }
  for (std::uint32_t member = 0; member < segment_.member_count(); ++member) {
    SleepLine& line = segment_.member(member).sleep;
    line.wake_count.fetch_add(1, std::memory_order_release);
    futex_wake_all(line.wake_count);
    MessageRings::wake_all(segment_.member(member).mail);
  }
}

MaybeFailure SharedFailure::found() const {
  const std::uint32_t finder = state().load(std::memory_order_acquire);
  if (finder == 0) return std::nullopt;
  return segment_.member(finder - 1).failure;
}

}  // namespace ivy::comm
