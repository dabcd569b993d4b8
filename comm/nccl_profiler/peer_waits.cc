// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/peer_waits.h"

#include "comm/nccl_profiler/profiler_interface.h"

namespace ivy::nccl_profiler {

void PeerWaits::clear() {
  for (Entry& entry : entries_) entry.steps.store(0, std::memory_order_relaxed);
  for (auto& step : waiting_sends_) step.store(kNoStep, std::memory_order_relaxed);
}

bool PeerWaits::record(const Handle& step, int state) {
  switch (state) {
    case kStepRecvWait:
      return add_step(step.wait_word());
    case kStepRecvFlushWait:
      return remove_step(step.wait_word());
    case kStepSendPeerWait:
      return start_send_wait(step);
    case kStepSendWait:
      return end_send_wait(step);
    default:
      return false;
  }
}

bool PeerWaits::start_send_wait(const Handle& step) {
  std::atomic<std::uint64_t>& waiting = waiting_sends_[step.channel_peer_slot()];
  const std::uint64_t previous = waiting.load(std::memory_order_relaxed);
  if (previous == step.bits()) return false;
  waiting.store(step.bits(), std::memory_order_relaxed);
  const bool is_peer_removed =
      previous != kNoStep && remove_step(Handle::of_bits(previous).wait_word());
  const bool is_peer_added = add_step(step.wait_word());
  return is_peer_removed || is_peer_added;
}

bool PeerWaits::end_send_wait(const Handle& step) {
  std::atomic<std::uint64_t>& waiting = waiting_sends_[step.channel_peer_slot()];
  // A step that never had to wait is not recorded.
  if (waiting.load(std::memory_order_relaxed) != step.bits()) return false;
  waiting.store(kNoStep, std::memory_order_relaxed);
  return remove_step(step.wait_word());
}

bool PeerWaits::add_step(std::uint32_t wait_word) {
  Entry* free = nullptr;
  for (Entry& entry : entries_) {
    const std::uint32_t steps = entry.steps.load(std::memory_order_relaxed);
    if (steps == 0) {
      if (free == nullptr) free = &entry;
    } else if (entry.wait_word.load(std::memory_order_relaxed) == wait_word) {
      entry.steps.store(steps + 1, std::memory_order_relaxed);
      return false;
    }
  }
  if (free == nullptr) return false;
  free->wait_word.store(wait_word, std::memory_order_relaxed);
  free->steps.store(1, std::memory_order_relaxed);
  return true;
}

bool PeerWaits::remove_step(std::uint32_t wait_word) {
  for (Entry& entry : entries_) {
    const std::uint32_t steps = entry.steps.load(std::memory_order_relaxed);
    if (steps == 0 || entry.wait_word.load(std::memory_order_relaxed) != wait_word) continue;
    entry.steps.store(steps - 1, std::memory_order_relaxed);
    return steps == 1;
  }
  return false;
}

}  // namespace ivy::nccl_profiler
