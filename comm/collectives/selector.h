// SPDX-License-Identifier: Apache-2.0
// Chooses how an operation's data is transferred, from a built-in table of sizes. The input is only
// data that all ranks of a call share, never a measured time, so all ranks make the same choice.
//
// Makes four choices, called *aspects*, each with its own rows:
//   algorithm   over shared memory: eager, slots, kernel; over TCP, all_reduce: whole, sliced
//   stores      shared memory: whether results are written to the caches or bypass them
//   registered  shared memory: whether registered buffers are mapped or treated like other memory
//   piece       TCP: the number of bytes into which a large operation is split
// "Bytes" are those of the vector (all_reduce, reduce, broadcast, scan), of the longest block
// (all_gather, gather, scatter, all_to_all) or of all blocks of one rank (reduce_scatter); for
// stores, those of the result. "Members" are the ranks of a host over shared memory, or the hosts
// over TCP.
//
// Over shared memory, two thresholds depend on the machine's caches, as reported by all of its
// ranks:
//   stores     results bypass the caches if all members' buffers fill more than three quarters of
//              the last levels, but not below 1 MiB and always from 16 MiB on (a virtual machine
//              may report more cache than it has for itself). If cores are far (Caches::is_near),
//              results of reductions always bypass them from 4 MiB on. If the caches are unknown: 4
//              MiB.
//   algorithm  the kernel's single copy, in its range of sizes, only if cores are far;
//              for all_reduce only if all members work in place, otherwise slots.
//
// Pure; thread: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "comm/contract/caches.h"
#include "comm/reduce/reduce.h"
#include "proto/wire/operation.h"

namespace ivy::comm {

enum class Aspect : std::uint8_t { kAlgorithm = 0, kStores = 1, kRegistered = 2, kPiece = 3 };
inline constexpr std::size_t kAspects = 4;

enum class Over : std::uint8_t { kShm = 0, kTcp = 1 };

enum class Algorithm : std::uint8_t {
  kEager,   // Published in the entry or the eager area, in one exchange, if it fits.
  kSlots,   // Copied through the slots of the shared segment.
  kKernel,  // One copy from the other member's memory, if the system permits it; otherwise slots.
  kWhole,   // Every host receives every host's whole result. Up to kMaxWholeBytes.
  kSliced,  // Hosts reduce slices and exchange the results.
};
inline constexpr std::size_t kMaxWholeBytes = std::size_t{4} << 20;

// Returns a hash of the built-in table's choices, which is equal if two builds make the same
// choices.
std::uint64_t built_in_fingerprint();

// The table for one transport and one number of members.
class Selector {
 public:
  // `is_one_rank_each`: the members are hosts that have one rank each. `caches` are used only over
  // shared memory.
  Selector(Over over, std::uint32_t members, bool is_one_rank_each = false,
           const Caches& caches = {});

  Algorithm algorithm(comm_status::Operation operation, std::size_t bytes) const {
    return static_cast<Algorithm>(find(Aspect::kAlgorithm, operation, bytes));
  }
  Stores stores(comm_status::Operation operation, std::size_t result_bytes) const {
    return static_cast<Stores>(find(Aspect::kStores, operation, result_bytes));
  }
  bool maps(comm_status::Operation operation, std::size_t bytes) const {
    return find(Aspect::kRegistered, operation, bytes) != 0;
  }
  std::size_t piece(comm_status::Operation operation, std::size_t bytes) const {
    return find(Aspect::kPiece, operation, bytes);
  }

 private:
  struct Step {
    // The first size beyond this step.
    std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
    std::uint32_t value = 0;
    std::uint32_t next = 0;  // Index of the next step in later_.
  };
  static constexpr std::size_t kOperations = std::size(comm_status::traits::kOfOperations);
  std::uint32_t find(Aspect aspect, comm_status::Operation operation, std::size_t bytes) const {
    // Usually one memory access, because a small operation costs only a few of them.
    const Step* step =
        &first_[static_cast<std::size_t>(aspect)][static_cast<std::size_t>(operation)];
    while (bytes >= step->end) step = &later_[step->next];
    return step->value;
  }

  std::array<std::array<Step, kOperations>, kAspects> first_ = {};
  std::vector<Step> later_;
};

}  // namespace ivy::comm
