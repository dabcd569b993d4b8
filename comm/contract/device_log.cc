// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/device_log.h"

#include <algorithm>

namespace ivy::comm {
namespace {

// Number of finished operations that a record shows before the oldest unfinished one.
constexpr std::uint64_t kWindowBefore = 8;

std::uint64_t hashed(std::uint64_t hash, const Fingerprint& fingerprint) {
  for (const std::uint64_t word : fingerprint.words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string calls(const Fingerprint& own, const Fingerprint& other) {
  return "calls " + describe_against(shape_of(own), shape_of(other));
}

}  // namespace

std::uint64_t DeviceLog::enter(const Fingerprint& fingerprint, bool is_recorded) {
  if (is_recorded) ++recorded_;
  hash_ = hashed(hash_, fingerprint);
  ++ahead_;
  if (entries_.empty()) entries_.resize(kKept);
  entries_[ahead_ % kKept] = {fingerprint, hash_};
  return ahead_;
}

void DeviceLog::begin_synchronized(const Fingerprint& fingerprint) {
  ++synchronized_;
  last_synchronized_ = fingerprint;
  is_synchronizing_ = true;
}

const DeviceLog::Entry* DeviceLog::find(std::uint64_t number) const {
  if (number == 0 || number > ahead_ || ahead_ - number >= kKept) return nullptr;
  return &entries_[number % kKept];
}

DeviceRecord DeviceLog::record(std::uint64_t oldest) const {
  DeviceRecord record;
  record.ahead = ahead_;
  record.synchronized = synchronized_;
  record.recorded = recorded_;
  record.hash = hash_;
  record.rank = rank_;
  record.last_synchronized = last_synchronized_;
  record.is_synchronizing = is_synchronizing_ ? 1 : 0;
  if (ahead_ == 0) return record;
  const std::uint64_t middle = oldest == 0 ? ahead_ : oldest;
  std::uint64_t first = middle > kWindowBefore ? middle - kWindowBefore : 1;
  if (oldest == 0) first = ahead_ > DeviceRecord::kWindow ? ahead_ - DeviceRecord::kWindow + 1 : 1;
  // Operations that are no longer in the log cannot be shown.
  first = std::max(first, ahead_ > kKept ? ahead_ - kKept + 1 : 1);
  record.first = first;
  for (std::size_t i = 0; i < DeviceRecord::kWindow; ++i) {
    if (const Entry* const entry = find(first + i)) record.window[i] = entry->fingerprint;
  }
  return record;
}

std::optional<DeviceDifference> DeviceLog::compare_window(const DeviceRecord& other) const {
  if (other.first == 0) return std::nullopt;
  for (std::size_t i = 0; i < DeviceRecord::kWindow && other.first + i <= other.ahead; ++i) {
    const Entry* const own = find(other.first + i);
    if (own == nullptr || own->fingerprint == other.window[i]) continue;
    return DeviceDifference{other.first + i, calls(own->fingerprint, other.window[i]),
                            calls(other.window[i], own->fingerprint)};
  }
  return std::nullopt;
}

// Finds a rank that ran ahead with an operation while another rank synchronized for its next one.
std::optional<DeviceDifference> DeviceLog::compare_order(const DeviceRecord& other) const {
  if (other.ahead < ahead_ && other.synchronized > synchronized_) {
    const Entry* const own = find(other.ahead + 1);
    const Fingerprint own_call = own != nullptr ? own->fingerprint : Fingerprint();
    return DeviceDifference{other.ahead + 1, calls(own_call, other.last_synchronized),
                            calls(other.last_synchronized, own_call)};
  }
  if (other.ahead > ahead_ && other.synchronized < synchronized_) {
    Fingerprint other_call;
    if (other.first != 0 && ahead_ + 1 >= other.first &&
        ahead_ + 1 < other.first + DeviceRecord::kWindow) {
      other_call = other.window[ahead_ + 1 - other.first];
    }
    return DeviceDifference{ahead_ + 1, calls(last_synchronized_, other_call),
                            calls(other_call, last_synchronized_)};
  }
  return std::nullopt;
}

std::optional<DeviceDifference> DeviceLog::compare(const DeviceRecord& other) const {
  if (std::optional<DeviceDifference> found = compare_window(other)) return found;
  if (std::optional<DeviceDifference> found = compare_order(other)) return found;
  const Entry* const own = find(other.ahead);
  if (own == nullptr || own->hash == other.hash) return std::nullopt;
  const std::string somewhere = "has called different operations before operation " +
                                std::to_string(other.ahead) + " than the other rank";
  return DeviceDifference{other.ahead, somewhere, somewhere};
}

}  // namespace ivy::comm
