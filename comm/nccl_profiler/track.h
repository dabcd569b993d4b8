// SPDX-License-Identifier: Apache-2.0
// The collectives, or the messages, of one communicator in order: one row of the status page, which
// shows the oldest unfinished operation, or else the last one.
//
// Thread: any, and none ever waits for another: a thread that finds the row being written leaves a
// note, and the writer checks again. NCCL enters operations on the program's threads, and reports
// the device's progress and waits for peers on its proxy's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "comm/nccl_profiler/peer_waits.h"
#include "proto/wire/status_page.h"

namespace ivy::nccl_profiler {

struct Call {
  comm_status::Operation operation = comm_status::Operation::kNone;
  comm_status::Dtype dtype = comm_status::Dtype::kNone;
  std::uint64_t count = 0;
  std::int32_t peer = -1;      // Root or peer, as a rank in the communicator.
  std::uint32_t channels = 0;  // Channels on the device; 0 if unknown.
};

class Track {
 public:
  // Limit of operations in progress at the same time; further ones are counted but not shown.
  static constexpr std::uint64_t kTracked = 512;

  // With `watches_device`, an operation is finished when the device reports that, not when it was
  // enqueued.
  void open(comm_status::Slot* slot, std::uint32_t row, bool watches_device);
  void rename(std::string_view name);
  void close();
  std::uint32_t row() const { return row_; }
  bool is_open() const { return slot_.load(std::memory_order_acquire) != nullptr; }

  // Returns the operation's sequence, from 1, or 0 if it is not tracked.
  std::uint64_t enter(const Call& call);
  // Call when NCCL has put the operation on the stream.
  void issued(std::uint64_t sequence);
  // Call when a channel of the device has started the operation, or has finished it.
  void begins(std::uint64_t sequence);
  void ends(std::uint64_t sequence);
  void record_wait(const Handle& step, int state);

 private:
  struct alignas(64) Tracked {
    std::atomic<std::uint64_t> sequence;  // Written after the others; 0 if there is none.
    std::atomic<std::uint64_t> entered_ns;
    std::atomic<std::uint64_t> ended_ns;  // 0 while it is in progress.
    std::atomic<std::uint64_t> count;
    std::atomic<std::uint64_t> what;  // Operation | element type << 8 | peer << 32
    std::atomic<std::uint32_t> channels;
    std::atomic<std::uint32_t> started_channels;
    std::atomic<std::uint32_t> ended;
  };

  Tracked& at(std::uint64_t sequence) { return operations_[sequence % kTracked]; }
  Tracked* find(std::uint64_t sequence);
  void end(Tracked& operation);
  void publish();
  void write(comm_status::SlotView page);
  void show(comm_status::SlotView page, std::uint64_t sequence);
  comm_status::OperationRecord record_of(const Tracked& operation, std::uint64_t sequence) const;
  comm_status::Phase phase_of(const Tracked& operation) const;

  std::atomic<comm_status::Slot*> slot_;
  std::uint32_t row_ = 0;
  std::atomic<std::uint32_t> name_hash_;
  bool watches_device_ = false;
  std::atomic<bool> knows_device_;  // The device has reported something.
  std::atomic<std::uint64_t> last_;
  std::atomic<std::uint64_t> oldest_;        // The first unfinished operation.
  std::atomic<std::uint64_t> last_skipped_;  // The last operation for which there was no room.
  // The newest operation known to be finished, with all before it: a device executes a
  // communicator's operations in order.
  std::atomic<std::uint64_t> over_through_;
  std::atomic<std::uint64_t> published_;
  std::atomic<bool> is_writing_;
  std::atomic<bool> has_work_;
  PeerWaits waits_;
  std::array<Tracked, kTracked> operations_{};
};

}  // namespace ivy::nccl_profiler
