// SPDX-License-Identifier: Apache-2.0
// Chooses how an operation's data travels, by a built-in table of sizes. The table's input is only
// what all ranks of a call share, never a measured time, so all ranks choose alike.
//
// Four things are chosen, each an *aspect* with its own rows:
//   algorithm   over shared memory: eager, slots, kernel; over TCP, all_reduce: whole, sliced
//   stores      shared memory, of results: into the caches or past them
//   registered  shared memory: are registered buffers mapped, or treated as any other memory?
//   piece       TCP: into how many bytes a large operation is cut
// "Bytes" are the vector's (all_reduce, reduce, broadcast, scan), the longest block's (all_gather,
// gather, scatter, all_to_all) or all blocks' of one rank (reduce_scatter); for stores those of the
// result. "Members" are the ranks of a host over shared memory, the hosts over TCP.
//
// Over shared memory two thresholds depend on the machine's caches, as all its ranks know them:
//   stores     results go past the caches where all members' buffers fill more than three quarters
//              of the last levels, but not below 1 MiB and at the latest at 16 (more is reported
//              than a virtual machine has for itself). Where the caches are not near, results of
//              reductions at 4 MiB at the latest. Caches not known: 4 MiB.
//   algorithm  the kernel's one copy, in its range of sizes, only where the caches are not near;
//              of all_reduce if all members work in place, else its slots.
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
  kEager,   // Shown in the entry or the eager area; one exchange. As far as that holds it.
  kSlots,   // Copied through the slots of the shared segment.
  kKernel,  // One copy from the other's memory, if the system permits it; else slots.
  kWhole,   // Every host gets every host's whole result. Up to kWholeMost.
  kSliced,  // Hosts reduce slices and hand them round.
};
inline constexpr std::size_t kWholeMost = std::size_t{4} << 20;

// A hash of what the built-in table chooses: equal if two builds choose the same.
std::uint64_t built_in_fingerprint();

// The table for one transport and one number of members.
class Selector {
 public:
  // is_one_rank_each: between hosts, each has one rank only. `caches` count over shared memory.
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
  static constexpr std::size_t kOperations = 16;
  std::uint32_t find(Aspect aspect, comm_status::Operation operation, std::size_t bytes) const {
    // This costs one memory access; a small operation takes no longer than a few of them.
    const Step* step =
        &first_[static_cast<std::size_t>(aspect)][static_cast<std::size_t>(operation)];
    while (bytes >= step->end) step = &later_[step->next];
    return step->value;
  }

  std::array<std::array<Step, kOperations>, kAspects> first_ = {};
  std::vector<Step> later_;
};

}  // namespace ivy::comm
