// SPDX-License-Identifier: Apache-2.0
// The peers for which the proxy of one communicator waits, so that `ivyctl why` can name one of
// them.
//
// NCCL's proxy moves data in steps, and reports a step's states (profiler_interface.h). Two of them
// start a wait for the peer, and two end it:
//
//     receiving   ── kStepRecvWait ─────> waits ── kStepRecvFlushWait ──> has the data
//     sending     ── kStepSendPeerWait ─> waits ── kStepSendWait ───────> data is on the network
//                    (repeated at every check)
//
// Several steps may wait for one peer, and the peer is awaited until the last of them ends. So the
// table counts the waiting steps of each peer and direction (Handle::wait_word()).
//
// Threads: record() is called only by the proxy's thread, and shown() by any. With a single writer,
// a load and a store change a count, without a locked instruction; they are atomic only for the
// readers. If NCCL uses several proxies for one communicator, an update may be lost: then, until
// the communicator is closed, a wait may be shown that has ended, or one may be missing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/nccl_profiler/handle.h"

namespace ivy::nccl_profiler {

class PeerWaits {
 public:
  // Forgets all waits. Call it before the communicator's first step.
  void clear();
  // Records that a step has reached a state, and ignores states that are not in the diagram.
  // Returns whether the set of awaited peers has changed, so that shown() may have.
  bool record(const Handle& step, int state);
  // Returns one of the waits, as a wait_word(), or 0 if there is none.
  std::uint32_t shown() const {
    for (const Entry& entry : entries_)
      if (entry.steps.load(std::memory_order_relaxed) > 0)
        return entry.wait_word.load(std::memory_order_relaxed);
    return 0;
  }

 private:
  struct Entry {
    std::atomic<std::uint32_t> wait_word;
    std::atomic<std::uint32_t> steps;  // Number of waiting steps; 0 if the entry is free.
  };
  // Enough for a ring, which has two peers, and a tree, which has six. A send or receive in a group
  // may wait for more. Their waits are dropped while the table is full, so that only a wait may be
  // missing: if a step ends whose wait was dropped, it may end another step's wait for the same
  // peer early.
  static constexpr std::size_t kPeers = 8;
  static constexpr std::uint64_t kNoStep = 0;

  // Adds a waiting step. Returns true if its peer was added to the table, false if the peer was
  // there already, or if the table is full.
  bool add_step(std::uint32_t wait_word);
  // Removes a waiting step. Returns true if its peer was removed from the table, false if other
  // steps still wait for the peer, or if the peer is not there.
  bool remove_step(std::uint32_t wait_word);
  bool start_send_wait(const Handle& step);
  bool end_send_wait(const Handle& step);

  std::array<Entry, kPeers> entries_{};
  // For each channel and peer, the Handle::bits() of the step that waits to send, or kNoStep: its
  // repeated reports must be counted once. If two steps share an element, each replaces the other
  // at its next check, so one of them is always recorded.
  std::array<std::atomic<std::uint64_t>, Handle::kChannelPeerSlots> waiting_sends_{};
};

}  // namespace ivy::nccl_profiler
