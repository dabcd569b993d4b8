// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/entry_table.h"

#include <algorithm>
#include <cstddef>

#include "comm/transports/shm/relax.h"

namespace ivy::comm {
namespace {

// The part of an entry's payload that is in the same cache line as its number.
constexpr std::size_t kFirstLineBytes = 64 - offsetof(EntryLine, payload);
const std::uint8_t* second_line(const EntryLine& entry) {
  return reinterpret_cast<const std::uint8_t*>(&entry) + 64;
}
// Bytes of an eager area that take_next_lines() prefetches for writing.
constexpr std::size_t kMaxTakenBytes = 1024;
// Bytes of an eager area that are prefetched together with the entry. With more, cache lines would
// bounce between the writer and the waiter.
constexpr std::size_t kMaxFetchedBytes = 512;

}  // namespace

void EntryTable::publish() {
  EntryLine& own = entry(self_, number_);
  const Fingerprint fingerprint = fingerprint_of(policy_.shape());
  own.fingerprint[0] = fingerprint.words[0];
  own.fingerprint[1] = fingerprint.words[1];
  wait_.publish(own.sequence, number_);
  wait_.notify_entered();
  if (is_overloaded_) wait_.count_arrival();
}

// Called when all members have entered this operation, so that none still reads this member's entry
// of the previous one. The next operation writes there; prefetch its lines.
void EntryTable::take_next_lines() {
  const EntryLine& next = entry(self_, number_ + 1);
  const std::size_t expected = expected_bytes_[(number_ + 1) & 1];
  take_line(&next);
  if (expected > kFirstLineBytes && expected <= kInlineBytes) take_line(second_line(next));
  if (expected <= kInlineBytes) return;
  const std::uint8_t* const eager = segment_.eager(self_, number_ + 1);
  const std::size_t bytes = std::min(expected, kMaxTakenBytes);
  for (std::size_t begin = 0; begin < bytes; begin += 64) take_line(eager + begin);
}

bool EntryTable::await_all_of(std::uint64_t number) {
  if (is_overloaded_ && !await_arrivals(number)) return false;
  return each_other(self_, size_, [&](std::uint32_t member) {
    return known_[member] >= number || await_entry(member, number);
  });
}

// No member enters an operation before all have entered the previous one, so `number * size_`
// arrivals mean that every member has entered this one.
bool EntryTable::await_arrivals(std::uint64_t number) {
  const std::uint64_t all = number * size_;
  if (segment_.header().arrivals.load(std::memory_order_acquire) >= all) return true;
  // Report a mismatch with the members that have arrived now, because the others may never arrive.
  for (std::uint32_t member = 0; member < size_; ++member) {
    const bool is_new = member != self_ && known_[member] < number &&
                        entry(member, number).sequence.load(std::memory_order_acquire) >= number;
    if (is_new && !await_entry(member, number)) return false;
  }
  return wait_.await_arrivals(all);
}

FetchedWith EntryTable::prefetch_of(std::uint32_t member, std::uint64_t number) const {
  const std::size_t bytes = expected_bytes_[number & 1];
  if (bytes <= kFirstLineBytes || bytes > kMaxFetchedBytes) return {};
  if (bytes > kInlineBytes) return {segment_.eager(member, number), bytes};
  return {second_line(entry(member, number)), 1};
}

bool EntryTable::await_entry(std::uint32_t member, std::uint64_t number) {
  const EntryLine& peer_entry = entry(member, number);
  const FetchedWith prefetch = prefetch_of(member, number);
  prefetch.fetch();
  if (peer_entry.sequence.load(std::memory_order_acquire) < number &&
      !wait_.await_slowly(peer_entry.sequence, number, member, prefetch)) {
    return false;
  }
  const EntryLine& own_entry = entry(self_, number);
  if (peer_entry.fingerprint[0] != own_entry.fingerprint[0] ||
      peer_entry.fingerprint[1] != own_entry.fingerprint[1]) {
    policy_.report_mismatch(member,
                            Fingerprint{{peer_entry.fingerprint[0], peer_entry.fingerprint[1]}},
                            Fingerprint{{own_entry.fingerprint[0], own_entry.fingerprint[1]}});
    return false;
  }
  known_[member] = number;
  if (number == number_ && ++known_here_ == size_ - 1) take_next_lines();
  return true;
}

bool EntryTable::compare_last() {
  // With this fence, at least one of two members that check at the same time sees the other's
  // entry.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_ || known_[member] >= number_) continue;
    if (entry(member, number_).sequence.load(std::memory_order_acquire) != number_) continue;
    if (!await_entry(member, number_)) return false;
  }
  return true;
}

}  // namespace ivy::comm
