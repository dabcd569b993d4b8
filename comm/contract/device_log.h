// SPDX-License-Identifier: Apache-2.0
// The log of the operations on device memory that a rank has called on one communicator without
// waiting for the other ranks, and the record of it that the rank publishes: ranks compare these
// operations later instead of beforehand.
//
// Operations that run ahead are numbered from 1 per communicator. `synchronized` counts the
// operations for which ranks synchronize. All ranks call both kinds in one common order: if a rank
// is ahead of another in one count and behind it in the other, their programs differ.
//
// Plain bytes: a record travels through the store between ranks of one build. Thread: one at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/contract/fingerprint.h"

namespace ivy::comm {

struct DeviceRecord {
  static constexpr std::size_t kWindow = 64;
  std::uint64_t ahead = 0;
  std::uint64_t synchronized = 0;  // Operations for which the ranks synchronized.
  std::uint64_t recorded = 0;   // Number of the `ahead` operations that were recorded into graphs.
  std::uint64_t hash = 0;       // Hash of all operations up to `ahead`.
  std::uint64_t first = 0;      // The number of window[0], or 0 if `window` is empty.
  Fingerprint window[kWindow];  // Around the oldest unfinished operation, or the last ones.
  Fingerprint last_synchronized;      // The last such operation, or the one in progress.
  std::int32_t rank = -1;             // This rank's number in the communicator.
  std::int32_t is_synchronizing = 0;  // 1 while `last_synchronized` is in progress.
};
static_assert(std::is_trivially_copyable_v<DeviceRecord>);

// A difference between two ranks' programs. `own` and `other` are texts such as "calls
// all_reduce(sum) of 3 f32".
struct DeviceDifference {
  std::uint64_t number = 0;  // Number of the operation among those that ran ahead.
  std::string own;
  std::string other;
};

class DeviceLog {
 public:
  static constexpr std::size_t kKept = 4096;

  explicit DeviceLog(std::int32_t rank) : rank_(rank) {}

  // Returns the number of the operation. An operation recorded into a graph counts once, however
  // often the graph is replayed.
  std::uint64_t enter(const Fingerprint& fingerprint, bool is_recorded = false);
  std::uint64_t last() const { return ahead_; }
  std::uint64_t recorded() const { return recorded_; }
  OperationShape shape_of_last() const {
    return entries_.empty() ? OperationShape() : shape_of(entries_[ahead_ % kKept].fingerprint);
  }
  // Returns the number of operations of both kinds.
  std::uint64_t called() const { return ahead_ + synchronized_; }
  // Mark the start and the end of an operation for which the ranks synchronize.
  void begin_synchronized(const Fingerprint& fingerprint);
  void end_synchronized() { is_synchronizing_ = false; }
  // `oldest` is the number of the oldest operation that the device has not finished, or 0.
  DeviceRecord record(std::uint64_t oldest) const;

  // Returns nothing if both logs agree, as far as they can be compared.
  std::optional<DeviceDifference> compare(const DeviceRecord& other) const;

 private:
  struct Entry {
    Fingerprint fingerprint;
    std::uint64_t hash = 0;
  };
  const Entry* find(std::uint64_t number) const;
  std::optional<DeviceDifference> compare_window(const DeviceRecord& other) const;
  std::optional<DeviceDifference> compare_order(const DeviceRecord& other) const;

  const std::int32_t rank_;
  std::uint64_t ahead_ = 0;
  std::uint64_t synchronized_ = 0;
  std::uint64_t recorded_ = 0;
  std::uint64_t hash_ = 0;
  Fingerprint last_synchronized_;
  bool is_synchronizing_ = false;
  std::vector<Entry> entries_;  // Indexed by number % kKept; empty before the first operation.
};

}  // namespace ivy::comm
