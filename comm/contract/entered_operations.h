// SPDX-License-Identifier: Apache-2.0
// The last operations of a rank on one communicator, and a hash of all its operations there. Ranks
// compare these records if they seem to be in different operations.
//
// Plain bytes: travels through the store between ranks of one build. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "comm/contract/fingerprint.h"

namespace ivy::comm {

struct EnteredOperations {
  static constexpr std::size_t kKept = 8;
  std::uint64_t sequence = 0;
  Fingerprint fingerprints[kKept];  // At the index sequence % kKept.
  std::uint64_t hash = 0;           // Hash of all operations, including the last one.
  std::int32_t rank = -1;           // This rank's number in the communicator.
  std::int32_t zero = 0;

  void enter(std::uint64_t number, const Fingerprint& fingerprint) {
    sequence = number;
    fingerprints[number % kKept] = fingerprint;
    for (const std::uint64_t word : fingerprint.words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
  }
  bool has(std::uint64_t number) const {
    return number > 0 && number <= sequence && sequence - number < kKept;
  }
  // Requires that has(number) is true.
  OperationShape shape(std::uint64_t number) const {
    return shape_of(fingerprints[number % kKept]);
  }
};
static_assert(std::is_trivially_copyable_v<EnteredOperations>);

// Returns the number of the first operation that both know and that differs.
inline std::optional<std::uint64_t> first_difference(const EnteredOperations& one,
                                                     const EnteredOperations& other) {
  const std::uint64_t end = one.sequence < other.sequence ? one.sequence : other.sequence;
  std::uint64_t number = end < EnteredOperations::kKept ? 1 : end - EnteredOperations::kKept + 1;
  for (; number <= end; ++number) {
    if (!one.has(number) || !other.has(number)) continue;
    constexpr std::size_t kKept = EnteredOperations::kKept;
    if (one.fingerprints[number % kKept] != other.fingerprints[number % kKept]) return number;
  }
  return std::nullopt;
}

}  // namespace ivy::comm
