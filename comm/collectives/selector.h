// SPDX-License-Identifier: Apache-2.0
// Chooses how a collective on host memory transfers its data, by the operation and its size. The
// input is only data that all ranks of a call share, never a measured time, because all ranks must
// make the same choice.
//
// The size is the number of bytes of
//   the vector, for all_reduce, reduce, broadcast and scan,
//   the longest block, for all_gather, gather, scatter and all_to_all,
//   all blocks of one rank, for reduce_scatter.
//
// The limits were measured by tests/bench/collectives.py with two ranks (README.md has figures). To
// measure a limit again, change it, and compare the build with the one before (`--beside`).
//
// Pure. Thread: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "comm/contract/caches.h"
#include "comm/reduce/reduction.h"
#include "proto/wire/operation.h"

namespace ivy::comm {

// How the ranks of one host transfer data.
enum class SharedAlgorithm : std::uint8_t {
  kEager,   // Published in the entry or the eager area, in one exchange.
  kSlots,   // Copied through the slots of the shared segment.
  kKernel,  // One copy from the other rank's memory, if the system permits it; otherwise slots.
};

// The choices among the ranks of one host, which share memory.
class SharedSelector {
 public:
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  // The sizes at which the choices for one operation change. Without limits, every size is eager
  // and is stored through the caches.
  struct Limits {
    std::size_t eager_max = kUnlimited;
    // Sizes that the kernel copies, including both. They are larger than eager_max.
    std::size_t kernel_min = kUnlimited;
    std::size_t kernel_max = 0;
    std::size_t streaming_min = kUnlimited;  // A size of the result.
  };

  // `ranks` is at least 1.
  explicit SharedSelector(std::uint32_t ranks, const Caches& caches = {});

  SharedAlgorithm algorithm(comm_status::Operation operation, std::size_t bytes) const {
    const Limits& limits = limits_of(operation);
    if (bytes <= limits.eager_max) return SharedAlgorithm::kEager;
    const bool is_for_kernel = bytes >= limits.kernel_min && bytes <= limits.kernel_max;
    return is_for_kernel ? SharedAlgorithm::kKernel : SharedAlgorithm::kSlots;
  }
  // Returns how results are stored. They bypass the caches if they would not fit.
  Stores stores(comm_status::Operation operation, std::size_t result_bytes) const {
    return result_bytes < limits_of(operation).streaming_min ? Stores::kCached : Stores::kStreaming;
  }
  const Limits& limits_of(comm_status::Operation operation) const {
    return limits_[static_cast<std::size_t>(operation)];
  }

 private:
  // Indexed by operation. A lookup is one memory access, because a small operation costs only a few
  // of them.
  std::array<Limits, std::size(comm_status::traits::kOfOperations)> limits_;
};

// Returns the largest size of an all_reduce between hosts for which every host sends its whole
// vector to every other host. For larger ones, hosts reduce slices and exchange the results.
// `is_one_rank_each`: every host has only one rank.
std::size_t max_whole_bytes(std::uint32_t hosts, bool is_one_rank_each);

// Large operations are sent between hosts in pieces of these sizes, so that one is received while
// another one is reduced or passed on.
inline constexpr std::size_t kAllReducePieceBytes = std::size_t{2} << 20;
inline constexpr std::size_t kReducePieceBytes = std::size_t{1} << 20;
inline constexpr std::size_t kReduceScatterPieceBytes = std::size_t{1} << 20;
inline constexpr std::size_t kBroadcastPieceBytes = std::size_t{512} << 10;

// Returns a hash of all limits. It is part of the protocol's identity (protocol_identity()): ranks
// whose builds would make different choices must not form a world.
std::uint64_t selector_fingerprint();

}  // namespace ivy::comm
