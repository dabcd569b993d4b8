// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/selector.h"

#include <algorithm>
#include <initializer_list>

#include "comm/transports/shm/shared_layout.h"

namespace ivy::comm {
namespace {

using comm_status::Operation;
using Limits = SharedSelector::Limits;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// In an eager reduction every rank reduces all vectors: one exchange less than in slices, but as
// many times the work as there are ranks. So the limit falls with their number.
std::size_t eager_max_of_reduction(std::uint32_t ranks) {
  return std::max(kKiB, kEagerBytes / std::max<std::uint32_t>(1, ranks / 2));
}

std::size_t eager_max(Operation operation, std::uint32_t ranks) {
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
      return eager_max_of_reduction(ranks);
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
    case Operation::kGather:
    case Operation::kScan:
      return kEagerBytes;
    case Operation::kAllGather:
      return 8 * kKiB;
    case Operation::kAllToAll:
      return kEagerBytes / ranks;  // A rank's blocks share one eager area.
    default:
      return SharedSelector::kUnlimited;  // It has only one algorithm.
  }
}

// If cores are far from each other, one copy through the kernel is faster than two through the
// slots, in a range of sizes. For smaller ones, its system call costs more. For larger ones, the
// second copy from the slots bypasses the caches, and the kernel's copy does not. If cores are
// near, two copies take half the time of the kernel's.
void set_kernel_range(Limits& limits, Operation operation, std::uint32_t ranks, bool is_near) {
  if (is_near) return;
  switch (operation) {
    case Operation::kAllReduce:  // Used only in place (shared_reduce.cc).
      if (ranks != 2) return;
      limits.kernel_min = 4 * kMiB;
      limits.kernel_max = 32 * kMiB;  // Small pages make it too slow for larger vectors.
      return;
    case Operation::kAllGather:
      limits.kernel_min = 64 * kKiB;
      limits.kernel_max = (ranks == 2 ? 16 : 4) * kMiB;
      return;
    case Operation::kAllToAll:
      limits.kernel_min = 64 * kKiB;
      limits.kernel_max = 16 * kMiB;
      return;
    default:
      return;
  }
}

// Returns the size of all ranks' buffers together, divided by the size of one rank's result, or 0
// if the operation's results never bypass the caches.
std::uint64_t buffers_per_result(Operation operation, std::uint64_t ranks) {
  switch (operation) {
    case Operation::kBroadcast:
    case Operation::kGather:
    case Operation::kScatter:
      return ranks;  // One buffer each.
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kAllToAll:
      return 2 * ranks;  // Each sends as much as it receives.
    case Operation::kAllGather:
      return ranks + 1;  // Each sends one block, and receives `ranks` blocks.
    case Operation::kReduceScatter:
      return ranks * (ranks + 1);  // Each sends `ranks` blocks, and receives one.
    default:
      return 0;
  }
}

// Results bypass the caches if all ranks' buffers fill more than three quarters of the last-level
// caches, but not below 1 MiB, and always from 16 MiB on, because a virtual machine may report more
// cache than it has for itself.
std::size_t streaming_min(Operation operation, std::uint32_t ranks, const Caches& caches) {
  constexpr std::size_t kIfUnknown = 4 * kMiB;
  // If cores are far from each other, larger results of a reduction would only evict the slots from
  // the caches.
  constexpr std::size_t kMaxOfFarReduction = 4 * kMiB;
  const std::uint64_t buffers = buffers_per_result(operation, ranks);
  if (buffers == 0) return SharedSelector::kUnlimited;
  const std::uint64_t room = last_level_bytes(caches, ranks) / 4 * 3;
  const std::size_t fitting =
      room == 0 ? kIfUnknown : std::clamp<std::size_t>(room / buffers, kMiB, 16 * kMiB);
  const bool is_reduction = operation == Operation::kAllReduce || operation == Operation::kReduce;
  return is_reduction && !caches.is_near ? std::min(fitting, kMaxOfFarReduction) : fitting;
}

}  // namespace

SharedSelector::SharedSelector(std::uint32_t ranks, const Caches& caches) {
  for (std::size_t number = 0; number < limits_.size(); ++number) {
    const auto operation = static_cast<Operation>(number);
    Limits& limits = limits_[number];
    limits.eager_max = eager_max(operation, ranks);
    set_kernel_range(limits, operation, ranks, caches.is_near);
    limits.streaming_min = streaming_min(operation, ranks, caches);
  }
}

std::size_t max_whole_bytes(std::uint32_t hosts, bool is_one_rank_each) {
  // Between two ranks, whole vectors are as many bytes on the network as slices and their results.
  return (hosts == 2 && is_one_rank_each ? 256 : 32) * kKiB;
}

std::uint64_t selector_fingerprint() {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  };
  // Limits depend on the number of ranks and on the caches, of which these are samples.
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 5U, 8U, 16U, 64U, kMembersMax}) {
    for (const Caches& caches :
         {Caches{}, Caches{32 * kMiB, 8, true}, Caches{32 * kMiB, 8, false}}) {
      const SharedSelector selector(ranks, caches);
      for (std::size_t number = 0; number < std::size(comm_status::traits::kOfOperations);
           ++number) {
        const auto operation = static_cast<Operation>(number);
        const Limits& limits = selector.limits_of(operation);
        add(limits.eager_max);
        add(limits.kernel_min);
        add(limits.kernel_max);
        add(limits.streaming_min);
      }
    }
    add(max_whole_bytes(ranks, false));
    add(max_whole_bytes(ranks, true));
  }
  for (const std::size_t bytes :
       {kAllReducePieceBytes, kReducePieceBytes, kReduceScatterPieceBytes, kBroadcastPieceBytes}) {
    add(bytes);
  }
  return hash;
}

}  // namespace ivy::comm
