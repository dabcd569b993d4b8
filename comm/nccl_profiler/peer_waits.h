// SPDX-License-Identifier: Apache-2.0
// Records the peers for which the proxy of one communicator waits. Thread: the proxy's writes, any
// reads. If NCCL has several proxies, a count may be off by one until the next wait; nothing else
// can go wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "comm/nccl_profiler/handle.h"

namespace ivy::nccl_profiler {

class PeerWaits {
 public:
  void clear() {
    for (Entry& entry : entries_) entry.count.store(0, std::memory_order_relaxed);
    for (auto& step : sending_) step.store(0, std::memory_order_relaxed);
  }
  // Returns whether word() may have changed.
  bool record(const Handle& step, int state);
  // Returns the wait to be shown, or 0 if there is none.
  std::uint32_t word() const {
    for (const Entry& entry : entries_)
      if (entry.count.load(std::memory_order_relaxed) > 0)
        return entry.word.load(std::memory_order_relaxed);
    return 0;
  }

 private:
  // A ring has two peers, a tree six.
  static constexpr std::size_t kPeers = 8;
  struct Entry {
    std::atomic<std::uint32_t> word;
    std::atomic<std::uint32_t> count;  // Number of steps that wait for the peer.
  };
  bool begin(std::uint32_t word);
  bool end(std::uint32_t word);
  bool stop_sending(std::atomic<std::uint64_t>& slot);

  std::array<Entry, kPeers> entries_{};
  // For each channel and peer, the step that has reported that its peer accepts nothing. It reports
  // that at every check, until it ends.
  std::array<std::atomic<std::uint64_t>, 128> sending_{};
};

}  // namespace ivy::nccl_profiler
