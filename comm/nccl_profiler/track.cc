// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/track.h"

#include <algorithm>

#include "proto/os/clock.h"

namespace ivy::nccl_profiler {

using comm_status::Dtype;
using comm_status::Operation;
using comm_status::OperationRecord;
using comm_status::Outcome;
using comm_status::Phase;
using comm_status::Slot;
using comm_status::SlotView;

void Track::open(Slot* slot, std::uint32_t row, bool watches_device) {
  for (Tracked& operation : operations_) operation.sequence.store(0, std::memory_order_relaxed);
  waits_.clear();
  row_ = row;
  watches_device_ = watches_device;
  knows_device_.store(false, std::memory_order_relaxed);
  for (auto* number : {&last_, &last_skipped_, &over_through_, &published_})
    number->store(0, std::memory_order_relaxed);
  oldest_.store(1, std::memory_order_relaxed);
  is_writing_.store(false, std::memory_order_relaxed);
  has_work_.store(false, std::memory_order_relaxed);
  slot_.store(slot, std::memory_order_release);
}

void Track::rename(std::string_view name) {
  Slot* const slot = slot_.load(std::memory_order_acquire);
  if (slot == nullptr) return;
  // Cut to the length that the page holds, because the hash is compared with the name there.
  name = name.substr(0, comm_status::kNameBytes - 9);
  name_hash_.store(comm_status::communicator_hash(name), std::memory_order_relaxed);
  SlotView(slot).name_communicator(row_, name);
}

void Track::close() {
  rename("");
  slot_.store(nullptr, std::memory_order_release);
}

std::uint64_t Track::enter(const Call& call) {
  const std::uint64_t sequence = last_.fetch_add(1, std::memory_order_relaxed) + 1;
  // Acquire: this slot's previous operation has been read completely.
  if (sequence - oldest_.load(std::memory_order_acquire) >= kTracked) {
    last_skipped_.store(sequence, std::memory_order_release);
    return 0;
  }
  Tracked& operation = at(sequence);
  operation.entered_ns.store(static_cast<std::uint64_t>(monotonic_ns()), std::memory_order_relaxed);
  operation.ended_ns.store(0, std::memory_order_relaxed);
  operation.count.store(call.count, std::memory_order_relaxed);
  operation.what.store(static_cast<std::uint64_t>(call.operation) |
                           static_cast<std::uint64_t>(call.dtype) << 8 |
                           static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.peer)) << 32,
                       std::memory_order_relaxed);
  operation.channels.store(call.channels, std::memory_order_relaxed);
  operation.started_channels.store(0, std::memory_order_relaxed);
  operation.ended.store(0, std::memory_order_relaxed);
  operation.sequence.store(sequence, std::memory_order_release);
  publish();
  return sequence;
}

Track::Tracked* Track::find(std::uint64_t sequence) {
  Tracked& operation = at(sequence);
  const bool is_its = operation.sequence.load(std::memory_order_acquire) == sequence;
  return is_its && sequence != 0 ? &operation : nullptr;
}

void Track::issued(std::uint64_t sequence) {
  if (watches_device_) return;
  if (Tracked* const operation = find(sequence)) end(*operation);
}

void Track::begins(std::uint64_t sequence) {
  Tracked* const operation = find(sequence);
  if (operation == nullptr) return;
  knows_device_.store(true, std::memory_order_relaxed);
  if (operation->started_channels.fetch_add(1, std::memory_order_relaxed) == 0) publish();
}

void Track::ends(std::uint64_t sequence) {
  Tracked* const operation = find(sequence);
  if (operation == nullptr) return;
  const std::uint32_t ended = operation->ended.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint32_t channels = operation->channels.load(std::memory_order_relaxed);
  if (ended <
      (channels != 0 ? channels : operation->started_channels.load(std::memory_order_relaxed)))
    return;
  if (over_through_.load(std::memory_order_relaxed) < sequence)
    over_through_.store(sequence, std::memory_order_release);
  end(*operation);
}

void Track::end(Tracked& operation) {
  operation.ended_ns.store(static_cast<std::uint64_t>(monotonic_ns()), std::memory_order_release);
  publish();
}

void Track::record_wait(const Handle& step, int state) {
  Slot* const slot = slot_.load(std::memory_order_acquire);
  if (slot == nullptr || !waits_.record(step, state)) return;
  const std::uint64_t published = published_.load(std::memory_order_relaxed);
  if (const Tracked* const operation = find(published))
    SlotView(slot).set_phase(row_, phase_of(*operation), waits_.shown());
}

void Track::publish() {
  Slot* const slot = slot_.load(std::memory_order_acquire);
  if (slot == nullptr) return;
  has_work_.store(true);
  while (has_work_.load() && !is_writing_.exchange(true)) {
    // An exchange, because a store would not make visible what the other thread did before its
    // note.
    has_work_.exchange(false);
    write(SlotView(slot));
    is_writing_.store(false);
  }
}

void Track::write(SlotView page) {
  const std::uint64_t last = last_.load(std::memory_order_relaxed);
  const std::uint64_t skipped = last_skipped_.load(std::memory_order_acquire);
  const std::uint64_t over_through = over_through_.load(std::memory_order_acquire);
  std::uint64_t oldest = oldest_.load(std::memory_order_relaxed);
  for (; oldest <= last; ++oldest) {
    const Tracked* const operation = find(oldest);
    // The thread of this operation is still entering it, and will publish it.
    if (operation == nullptr && oldest > skipped) break;
    if (operation == nullptr) continue;
    const std::uint64_t ended_ns = operation->ended_ns.load(std::memory_order_acquire);
    if (ended_ns == 0 && oldest > over_through) break;
    OperationRecord record = record_of(*operation, oldest);
    record.ended_ns = ended_ns != 0 ? ended_ns : static_cast<std::uint64_t>(monotonic_ns());
    record.outcome = Outcome::kDone;
    page.finish(record);
  }
  oldest_.store(oldest, std::memory_order_release);
  show(page, oldest);
}

void Track::show(SlotView page, std::uint64_t sequence) {
  const Tracked* const operation = find(sequence);
  if (operation == nullptr) return;
  if (published_.load(std::memory_order_relaxed) != sequence) {
    page.enter(record_of(*operation, sequence));
    published_.store(sequence, std::memory_order_relaxed);
  }
  page.set_phase(row_, phase_of(*operation), waits_.shown());
}

OperationRecord Track::record_of(const Tracked& operation, std::uint64_t sequence) const {
  const std::uint64_t what = operation.what.load(std::memory_order_relaxed);
  OperationRecord record;
  record.sequence = sequence;
  record.count = operation.count.load(std::memory_order_relaxed);
  record.entered_ns = operation.entered_ns.load(std::memory_order_relaxed);
  record.peer = static_cast<std::int32_t>(what >> 32);
  record.communicator_hash = name_hash_.load(std::memory_order_relaxed);
  record.communicator = static_cast<std::uint16_t>(row_);
  record.operation = static_cast<Operation>(what & 0xff);
  record.dtype = static_cast<Dtype>(what >> 8 & 0xff);
  return record;
}

Phase Track::phase_of(const Tracked& operation) const {
  if (operation.started_channels.load(std::memory_order_relaxed) > 0) return Phase::kOnDevice;
  return knows_device_.load(std::memory_order_relaxed) ? Phase::kQueued : Phase::kIssued;
}

}  // namespace ivy::nccl_profiler
