// The operations on device memory that a rank has called on one communicator without waiting for
// the other ranks, and what it tells them of these: ranks compare later what they did not compare
// before.
//
// An operation is numbered from 1 among those of its communicator that went ahead. `met` counts the
// operations for which the ranks met: all ranks call both kinds in one common order, so of two
// ranks one is behind in both counts, or the program differs.
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
  static constexpr std::size_t kShown = 64;
  std::uint64_t ahead = 0;
  std::uint64_t met = 0;           // The operations for which this rank has met the others.
  std::uint64_t recorded = 0;      // How many of `ahead` it has recorded into graphs.
  std::uint64_t hash = 0;          // A hash of all operations up to `ahead`.
  std::uint64_t first = 0;         // The number of shown[0]; 0: nothing is shown.
  Fingerprint shown[kShown];       // Around the oldest one that is not done.
  Fingerprint meeting;             // The last operation for which it has met, or waits to meet.
  std::int32_t rank = -1;          // This rank's number in the communicator.
  std::int32_t is_in_meeting = 0;  // 1: that one is under way.
};
static_assert(std::is_trivially_copyable_v<DeviceRecord>);

// Where two ranks' programs differ. `own` and `other` are texts: "calls all_reduce(sum) of 3 f32".
struct DeviceDifference {
  std::uint64_t number = 0;  // The number of the operation, among those that went ahead.
  std::string own;
  std::string other;
};

class DeviceLog {
 public:
  static constexpr std::size_t kKept = 4096;

  explicit DeviceLog(std::int32_t rank) : rank_(rank) {}

  // Returns the number of the operation. One that is recorded into a graph counts once, however
  // often the graph is replayed.
  std::uint64_t enter(const Fingerprint& fingerprint, bool is_recorded = false);
  std::uint64_t last() const { return ahead_; }
  std::uint64_t recorded() const { return recorded_; }
  OperationShape shape_of_last() const {
    return entries_.empty() ? OperationShape() : shape_of(entries_[ahead_ % kKept].fingerprint);
  }
  // How many operations of both kinds it has called.
  std::uint64_t called() const { return ahead_ + met_; }
  // The ranks meet for an operation; it is over.
  void begin_meeting(const Fingerprint& fingerprint);
  void end_meeting() { is_in_meeting_ = false; }
  // `oldest`: the number of the oldest operation that the device has not done; 0: there is none.
  DeviceRecord record(std::uint64_t oldest) const;

  // Nothing: both agree, as far as they can be compared.
  std::optional<DeviceDifference> compare(const DeviceRecord& other) const;

 private:
  struct Entry {
    Fingerprint fingerprint;
    std::uint64_t hash = 0;
  };
  const Entry* find(std::uint64_t number) const;
  std::optional<DeviceDifference> compare_shown(const DeviceRecord& other) const;
  std::optional<DeviceDifference> compare_order(const DeviceRecord& other) const;

  const std::int32_t rank_;
  std::uint64_t ahead_ = 0;
  std::uint64_t met_ = 0;
  std::uint64_t recorded_ = 0;
  std::uint64_t hash_ = 0;
  Fingerprint meeting_;
  bool is_in_meeting_ = false;
  std::vector<Entry> entries_;  // By number % kKept; empty before the first.
};

}  // namespace ivy::comm
