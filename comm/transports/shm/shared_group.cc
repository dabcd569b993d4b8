// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_group.h"

#include <utility>

#include "proto/os/clock.h"

namespace ivy::comm {

SharedGroup::SharedGroup(std::shared_ptr<SharedSegment> segment, SharedGroupOptions options,
                         FailureDetector* detector)
    : segment_(std::move(segment)),
      options_(std::move(options)),
      failure_(*segment_, options_.self),
      policy_(*segment_, options_, failure_, detector),
      wait_(*segment_, options_, policy_),
      entries_(*segment_, options_, wait_),
      slots_(*segment_, options_, wait_),
      buffers_(*segment_, options_, wait_, entries_),
      mail_(*segment_, options_.self) {
  MemberBlock& own = segment_->member(options_.self);
  own.pid = options_.members[options_.self].pid;
  own.probe = buffers_.own_probe();
  own.attached.store(kIsHere, std::memory_order_release);
}

SharedGroup::~SharedGroup() {
  segment_->member(self()).attached.store(kHasLeft, std::memory_order_release);
}

bool SharedGroup::take_turn(std::uint64_t sequence, std::chrono::nanoseconds pause) {
  // One word holds both: milliseconds, and enough bits of the number to distinguish consecutive
  // operations.
  constexpr int kSequenceBits = 16;
  const auto pause_ms = static_cast<std::uint64_t>(pause / std::chrono::milliseconds(1));
  const auto now = static_cast<std::uint64_t>(monotonic_ns() / 1'000'000);
  std::atomic<std::uint64_t>& probe_turn = segment_->header().probe_turn;
  const std::uint64_t number = sequence & ((std::uint64_t{1} << kSequenceBits) - 1);
  std::uint64_t last = probe_turn.load(std::memory_order_relaxed);
  const bool is_same = (last & ((std::uint64_t{1} << kSequenceBits) - 1)) == number;
  if (is_same && now - (last >> kSequenceBits) < pause_ms) return false;
  return probe_turn.compare_exchange_strong(last, now << kSequenceBits | number,
                                            std::memory_order_relaxed);
}

}  // namespace ivy::comm
