// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/selector.h"

#include <algorithm>
#include <map>

#include "comm/transports/shm/shared_layout.h"
#include "proto/contract/status.h"

namespace ivy::comm {
namespace {

using enum Aspect;
using Operation = comm_status::Operation;

// How the size in a row depends on the number of members, p.
enum class Size : std::uint8_t {
  kPlain,
  kOfAllBlocks,  // p blocks share one eager area.
  kOneShot,      // Every rank reduces everything: p times the work, but one exchange less.
  kOfTwoRanks,   // Two ranks exchange no more data this way than in halves.
  // The result size n beyond which p members' buffers no longer fit into the last-level caches, by
  // the memory that the members need:
  kOneBuffer,    // p n: each has one buffer.
  kTwoBuffers,   // 2 p n: one to send and one to receive.
  kShareAndAll,  // (p + 1) n: each sends a p-th of the result.
  kAllAndShare,  // p (p + 1) n: each receives a p-th of what it sends.
  kReduction,    // As kTwoBuffers, but smaller if cores are far from each other.
  kFarOnly,      // `from` if cores are far from each other, otherwise never.
  kFarPair,      // The same, but only for two ranks.
};

// A value that applies from a size on.
struct LaterValue {
  std::uint64_t from = 0;  // 0 if there is no such value.
  std::uint64_t value = 0;
  Size size = Size::kPlain;
};

// The choices for one operation: the value from size 0 on, and later values ordered by size.
struct BuiltInChoice {
  Operation operation;
  Aspect aspect;
  Over over;
  std::uint64_t first;
  LaterValue later[5] = {};
};

constexpr std::uint64_t number(Algorithm algorithm) {
  return static_cast<std::uint64_t>(algorithm);
}
constexpr std::uint64_t kEager = number(Algorithm::kEager);
constexpr std::uint64_t kSlotted = number(Algorithm::kSlots);
constexpr std::uint64_t kByKernel = number(Algorithm::kKernel);
constexpr std::uint64_t kCachedStores = static_cast<std::uint64_t>(Stores::kCached);
constexpr std::uint64_t kStreamingStores = static_cast<std::uint64_t>(Stores::kStreaming);
constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::uint64_t kPastEager = kEagerBytes + 1;
// Used if the caches are unknown, and as the upper limit for reductions if cores are far from each
// other: larger results would only evict the staging buffers from the caches.
constexpr std::uint64_t kStreamingFrom = 4 * kMiB;
constexpr std::uint64_t kMinStreaming = kMiB;
constexpr std::uint64_t kMaxStreaming = 16 * kMiB;

constexpr LaterValue slots_from(std::uint64_t from, Size size = Size::kPlain) {
  return {from, kSlotted, size};
}
constexpr BuiltInChoice stores_of(Operation operation, Size size) {
  return {
      operation, kStores, Over::kShm, kCachedStores, {{kStreamingFrom, kStreamingStores, size}}};
}

// If cores are far from each other, one copy through the kernel is faster between its thresholds
// than two through the slots. Below, its system call costs more; above, the second copy from the
// slots bypasses the caches, and the kernel's copy does not. If cores are near, two copies take
// half its time.
constexpr BuiltInChoice kBuiltIn[] = {
    // Only in place, see selector.h. For larger sizes, small pages make it too slow.
    {Operation::kAllReduce,
     kAlgorithm,
     Over::kShm,
     kEager,
     {slots_from(kPastEager, Size::kOneShot),
      {4 * kMiB, kByKernel, Size::kFarPair},
      slots_from(32 * kMiB + 1)}},
    {Operation::kReduce, kAlgorithm, Over::kShm, kEager, {slots_from(kPastEager, Size::kOneShot)}},
    {Operation::kReduceScatter, kAlgorithm, Over::kShm, kEager, {slots_from(kPastEager)}},
    {Operation::kBroadcast, kAlgorithm, Over::kShm, kEager, {slots_from(kPastEager)}},
    {Operation::kAllGather,
     kAlgorithm,
     Over::kShm,
     kEager,
     {slots_from(8 * kKiB + 1),
      {64 * kKiB, kByKernel, Size::kFarOnly},
      slots_from(4 * kMiB + 1),
      {4 * kMiB + 1, kByKernel, Size::kFarPair},
      slots_from(16 * kMiB + 1)}},
    {Operation::kGather, kAlgorithm, Over::kShm, kEager, {slots_from(kPastEager)}},
    {Operation::kAllToAll,
     kAlgorithm,
     Over::kShm,
     kEager,
     {slots_from(kPastEager, Size::kOfAllBlocks),
      {64 * kKiB, kByKernel, Size::kFarOnly},
      slots_from(16 * kMiB + 1)}},
    {Operation::kScan, kAlgorithm, Over::kShm, kEager, {slots_from(kPastEager)}},

    stores_of(Operation::kAllReduce, Size::kReduction),
    stores_of(Operation::kReduce, Size::kReduction),
    stores_of(Operation::kReduceScatter, Size::kAllAndShare),
    stores_of(Operation::kBroadcast, Size::kOneBuffer),
    stores_of(Operation::kAllGather, Size::kShareAndAll),
    stores_of(Operation::kGather, Size::kOneBuffer),
    stores_of(Operation::kScatter, Size::kOneBuffer),
    stores_of(Operation::kAllToAll, Size::kTwoBuffers),

    {Operation::kAllReduce, kRegistered, Over::kShm, 1},
    {Operation::kReduceScatter, kRegistered, Over::kShm, 1},
    {Operation::kBroadcast, kRegistered, Over::kShm, 1},
    {Operation::kAllGather, kRegistered, Over::kShm, 1},
    {Operation::kAllToAll, kRegistered, Over::kShm, 1},

    {Operation::kAllReduce,
     kAlgorithm,
     Over::kTcp,
     number(Algorithm::kWhole),
     {{32 * kKiB + 1, number(Algorithm::kSliced), Size::kOfTwoRanks}}},

    {Operation::kAllReduce, kPiece, Over::kTcp, 2 * kMiB},
    {Operation::kReduce, kPiece, Over::kTcp, kMiB},
    {Operation::kReduceScatter, kPiece, Over::kTcp, kMiB},
    {Operation::kBroadcast, kPiece, Over::kTcp, 512 * kKiB},
};

// The participants: ranks of a host, or hosts.
struct Participants {
  std::uint32_t members = 1;
  bool is_one_rank_each = false;  // Every host has only one rank.
  Caches caches;
};

constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();

// Returns the size of a result for which `times` times as many bytes fill three quarters of the
// last-level caches, between kMinStreaming and kMaxStreaming, or kStreamingFrom if the caches
// are unknown.
std::uint64_t past_caches(const Participants& participants, std::uint64_t times) {
  const std::uint64_t room = last_level_bytes(participants.caches, participants.members) / 4 * 3;
  return room == 0 ? kStreamingFrom : std::clamp(room / times, kMinStreaming, kMaxStreaming);
}

std::uint64_t size_for(const LaterValue& row, const Participants& participants) {
  const std::uint64_t count = std::max<std::uint32_t>(1, participants.members);
  switch (row.size) {
    case Size::kPlain:
      return row.from;
    case Size::kOfAllBlocks:
      return (row.from - 1) / count + 1;
    case Size::kOneShot:
      return std::max<std::uint64_t>(kKiB, (row.from - 1) / std::max<std::uint64_t>(1, count / 2)) +
             1;
    case Size::kOneBuffer:
      return past_caches(participants, count);
    case Size::kTwoBuffers:
      return past_caches(participants, 2 * count);
    case Size::kShareAndAll:
      return past_caches(participants, count + 1);
    case Size::kAllAndShare:
      return past_caches(participants, count * (count + 1));
    case Size::kReduction:
      return participants.caches.is_near
                 ? past_caches(participants, 2 * count)
                 : std::min(kStreamingFrom, past_caches(participants, 2 * count));
    case Size::kFarOnly:
      return participants.caches.is_near ? kNoEnd : row.from;
    case Size::kFarPair:
      return participants.caches.is_near || count != 2 ? kNoEnd : row.from;
    case Size::kOfTwoRanks:
      return count == 2 && participants.is_one_rank_each ? 256 * kKiB + 1 : row.from;
  }
  return row.from;
}

// Maps the size at which a value starts to the value. The first one starts at 0.
using Starts = std::map<std::uint64_t, std::uint64_t>;

Starts starts_of(const BuiltInChoice& choice, const Participants& participants) {
  Starts starts = {{0, choice.first}};
  for (const LaterValue& later : choice.later) {
    if (later.from == 0) break;
    const std::uint64_t start = size_for(later, participants);
    if (start != kNoEnd) starts[start] = later.value;
  }
  return starts;
}

}  // namespace

std::uint64_t built_in_fingerprint() {
  std::uint64_t hash = 0;
  const auto add = [&](std::uint64_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  };
  // A size may depend on the number of participants, until it reaches its minimum.
  const auto add_all = [&](const BuiltInChoice& choice, const Participants& participants) {
    add(static_cast<std::uint64_t>(choice.operation));
    add(static_cast<std::uint64_t>(choice.aspect));
    add(static_cast<std::uint64_t>(choice.over));
    for (const auto& [from, value] : starts_of(choice, participants)) {
      add(from);
      add(value);
    }
  };
  const Caches all_caches[] = {{}, {32 * kMiB, 8, true}, {32 * kMiB, 8, false}};
  for (const std::uint32_t members : {1U, 2U, 3U, 4U, 5U, 8U, 16U, 64U, 1024U}) {
    for (const BuiltInChoice& choice : kBuiltIn) {
      for (const bool is_one_rank_each : {false, true}) {
        for (const Caches& caches : all_caches) {
          add_all(choice, {members, is_one_rank_each, caches});
        }
      }
    }
  }
  add(kMaxWholeBytes);
  return hash;
}

Selector::Selector(Over over, std::uint32_t members, bool is_one_rank_each, const Caches& caches) {
  for (const BuiltInChoice& choice : kBuiltIn) {
    if (choice.over != over) continue;
    const Starts starts = starts_of(choice, {members, is_one_rank_each, caches});
    Step* step = &first_[static_cast<std::size_t>(choice.aspect)]
                        [static_cast<std::size_t>(choice.operation)];
    step->value = static_cast<std::uint32_t>(starts.begin()->second);
    for (auto start = std::next(starts.begin()); start != starts.end(); ++start) {
      step->end = start->first;
      step->next = static_cast<std::uint32_t>(later_.size());
      later_.emplace_back();
      step = &later_.back();
      step->value = static_cast<std::uint32_t>(start->second);
    }
  }
}

}  // namespace ivy::comm
