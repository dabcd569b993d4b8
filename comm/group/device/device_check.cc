// SPDX-License-Identifier: Apache-2.0
#include "comm/group/device/device_check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long an operation runs before its rank checks whether the others are in the same one.
constexpr milliseconds kLate{300};
// Interval between comparisons, and number of ranks that the store can serve in that time.
constexpr milliseconds kPause{1'000};
constexpr std::int32_t kRanksInPause = 512;
// Number of other ranks' records that are read in one comparison.
constexpr std::int32_t kMaxRead = 64;
// Number of ranks that a message names.
constexpr std::size_t kMaxNamed = 8;

std::string bytes_of(const DeviceRecord& record) {
  return {reinterpret_cast<const char*>(&record), sizeof record};
}

std::string counted(std::uint64_t operations) {
  return std::to_string(operations) + (operations == 1 ? " operation" : " operations");
}

}  // namespace

DeviceCheckMode device_check_mode() {
  const char* const wanted = std::getenv("IVY_DEVICE_CHECK");
  const std::string_view word = wanted != nullptr ? wanted : "";
  if (word == "every") return DeviceCheckMode::kEvery;
  return word == "first" ? DeviceCheckMode::kFirst : DeviceCheckMode::kLagged;
}

DeviceCheck::DeviceCheck(const Membership& ranks, FailFastStore& store, std::string key)
    : ranks_(ranks), store_(store), key_(std::move(key)), log_(ranks.rank()) {}

std::uint64_t DeviceCheck::count_enqueued(const OperationShape& shape, bool is_recorded) {
  const std::lock_guard lock(mutex_);
  ++ahead_;
  return log_.enter(fingerprint_of(shape), is_recorded);
}

void DeviceCheck::begin_synchronized(OperationShape& shape) {
  const std::lock_guard lock(mutex_);
  shape.ahead = static_cast<std::uint8_t>(ahead_ % kAheadCounted);
  ahead_ = 0;
  log_.begin_synchronized(fingerprint_of(shape));
}

void DeviceCheck::end_synchronized() {
  const std::lock_guard lock(mutex_);
  log_.end_synchronized();
}

DeviceCheck::LastOperation DeviceCheck::last_operation() {
  const std::lock_guard lock(mutex_);
  return {log_.last(), log_.shape_of_last()};
}

steady_clock::duration DeviceCheck::pause() const {
  return kPause * std::max(1, ranks_.size() / kRanksInPause);
}

std::optional<DeviceRecord> DeviceCheck::read(std::int32_t rank) {
  const std::optional<std::string> bytes = store_.get(key_ + std::to_string(rank));
  if (!bytes || bytes->size() != sizeof(DeviceRecord)) return std::nullopt;
  DeviceRecord record;
  std::memcpy(&record, bytes->data(), sizeof record);
  return record;
}

void DeviceCheck::publish_record(std::uint64_t oldest) {
  DeviceRecord record;
  {
    const std::lock_guard lock(mutex_);
    record = log_.record(oldest);
  }
  store_.set(key_ + std::to_string(ranks_.rank()), bytes_of(record));
}

Failure DeviceCheck::failure_of(const DeviceDifference& difference, std::int32_t other) const {
  Failure failure =
      make_failure(FailureKind::kMismatch,
                   "operation " + std::to_string(difference.number) +
                       " on devices differs between ranks of communicator " + ranks_.name() +
                       ": rank " + std::to_string(ranks_.rank()) + " " + difference.own +
                       ", rank " + std::to_string(other) + " " + difference.other);
  failure.rank = ranks_.world_rank(other);
  failure.sequence = difference.number;
  return failure;
}

MaybeFailure DeviceCheck::compare_with(std::int32_t rank) {
  const std::optional<DeviceRecord> other = read(rank);
  if (!other) return std::nullopt;
  std::optional<DeviceDifference> different;
  {
    const std::lock_guard lock(mutex_);
    different = log_.compare(*other);
  }
  if (!different) return std::nullopt;
  return failure_of(*different, rank);
}

MaybeFailure DeviceCheck::compare_with_all() {
  const std::int32_t most = std::min(ranks_.size() - 1, kMaxRead);
  for (std::int32_t step = 1; step <= most; ++step) {
    const std::int32_t rank = (ranks_.rank() + step) % ranks_.size();
    if (MaybeFailure failure = compare_with(rank)) return failure;
  }
  return std::nullopt;
}

MaybeFailure DeviceCheck::tick(const nccl::Enqueued* oldest) {
  if (!compares_later()) return std::nullopt;
  const auto now = steady_now();
  const std::uint64_t number = oldest != nullptr ? oldest->number : 0;
  if (number != late_number_) {
    late_number_ = number;
    late_since_ = now;
  }
  const bool is_late = number != 0 && now - late_since_ >= kLate;
  std::uint64_t called = 0;
  {
    const std::lock_guard lock(mutex_);
    called = log_.called();
  }
  if (now - exchanged_at_ < (is_late ? steady_clock::duration(kLate) : pause())) {
    return std::nullopt;
  }
  if (!is_late && called == compared_) return std::nullopt;
  exchanged_at_ = now;
  compared_ = called;
  publish_record(number);
  return is_late ? compare_with_all() : compare_with((ranks_.rank() + 1) % ranks_.size());
}

MaybeFailure DeviceCheck::find_difference() {
  publish_record(late_number_);
  return compare_with_all();
}

// For an operation that all ranks have called: a rank whose call was recorded into a graph does its
// part only when the graph is replayed.
std::string DeviceCheck::explain_no_difference(std::uint64_t recorded, std::int32_t other,
                                               std::uint64_t other_recorded) const {
  const auto of_rank = [](std::int32_t rank, std::uint64_t operations) {
    return "rank " + std::to_string(rank) + " has recorded " + counted(operations) + " into graphs";
  };
  return "all ranks have called it, but " + of_rank(ranks_.rank(), recorded) + " and " +
         of_rank(other, other_recorded) + ": is every graph replayed?";
}

std::string DeviceCheck::why_late(const nccl::Enqueued& operation) {
  constexpr const char* kNoDifference =
      "all ranks have called it: is something before it on a stream stuck?";
  if (mode_ == DeviceCheckMode::kFirst) return "has every rank called it?";
  if (mode_ == DeviceCheckMode::kEvery || ranks_.size() == 1) return kNoDifference;
  publish_record(operation.number);
  std::uint64_t recorded = 0;
  {
    const std::lock_guard lock(mutex_);
    recorded = log_.recorded();
  }
  std::string behind;
  std::string explanation = kNoDifference;
  std::size_t named = 0;
  const std::int32_t most = std::min(ranks_.size() - 1, kMaxRead);
  for (std::int32_t step = 1; step <= most; ++step) {
    const std::int32_t rank = (ranks_.rank() + step) % ranks_.size();
    const std::optional<DeviceRecord> other = read(rank);
    const std::uint64_t called = other ? other->ahead : 0;
    if (called >= operation.number) {
      if (other->recorded != recorded)
        explanation = explain_no_difference(recorded, rank, other->recorded);
      continue;
    }
    if (++named > kMaxNamed) continue;
    behind += (behind.empty() ? "" : ", ") + ("rank " + std::to_string(rank)) + " has called " +
              counted(called) + " on devices, as far as known";
  }
  if (behind.empty()) return explanation;
  return behind + (named > kMaxNamed ? ", ..." : "");
}

}  // namespace ivy::comm
