// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/peer_waits.h"

#include "comm/nccl_profiler/profiler_interface.h"

namespace ivy::nccl_profiler {

bool PeerWaits::begin(std::uint32_t word) {
  Entry* free = nullptr;
  for (Entry& entry : entries_) {
    const std::uint32_t count = entry.count.load(std::memory_order_relaxed);
    if (count == 0) {
      if (free == nullptr) free = &entry;
      continue;
    }
    if (entry.word.load(std::memory_order_relaxed) != word) continue;
    entry.count.store(count + 1, std::memory_order_relaxed);
    return false;
  }
  if (free == nullptr) return false;
  free->word.store(word, std::memory_order_relaxed);
  free->count.store(1, std::memory_order_relaxed);
  return true;
}

bool PeerWaits::end(std::uint32_t word) {
  for (Entry& entry : entries_) {
    const std::uint32_t count = entry.count.load(std::memory_order_relaxed);
    if (count == 0 || entry.word.load(std::memory_order_relaxed) != word) continue;
    entry.count.store(count - 1, std::memory_order_relaxed);
    return count == 1;
  }
  return false;
}

bool PeerWaits::stop_sending(std::atomic<std::uint64_t>& slot) {
  const std::uint64_t step = slot.load(std::memory_order_relaxed);
  if (step == 0) return false;
  slot.store(0, std::memory_order_relaxed);
  return end(Handle::of(reinterpret_cast<const void*>(step)).wait_word());
}

bool PeerWaits::record(const Handle& step, int state) {
  if (state == kReceivesState) return begin(step.wait_word());
  if (state == kReceivedState) return end(step.wait_word());
  std::atomic<std::uint64_t>& slot = sending_[step.slot()];
  const auto value = reinterpret_cast<std::uintptr_t>(step.pointer());
  if (state == kPeerTakesNothingState) {
    if (slot.load(std::memory_order_relaxed) == value) return false;
    const bool ended = stop_sending(slot);
    slot.store(value, std::memory_order_relaxed);
    return begin(step.wait_word()) || ended;
  }
  if (state == kSendsState && slot.load(std::memory_order_relaxed) == value)
    return stop_sending(slot);
  return false;
}

}  // namespace ivy::nccl_profiler
