// SPDX-License-Identifier: Apache-2.0
// Waiting requests, indexed by missing key, client, request and deadline, so that no look-up scans
// all of them. Part of the engine. Pure. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rendezvous/engine/requests.h"

namespace ivy::store {

using WaiterId = std::uint64_t;  // Increases, so a smaller id has waited longer.

enum class WaitKind {
  kKeys,     // Waits until every key exists.
  kValue,    // Waits until the key exists; answered with its value.
  kItem,     // Waits until the queue has an item for it.
  kNumber,   // Waits until the key's number is at_least.
  kBarrier,  // Waits until the round is complete; `keys` holds the barrier's name.
};

struct Waiter {
  ClientId client = 0;
  RequestId request = 0;
  Space space = Space::kNative;
  WaitKind kind = WaitKind::kKeys;
  std::vector<std::string> keys;  // Never changed after add(), because `missing` points into it.
  // With kNumber, the awaited number; with kBarrier, the arrival's Barrier::call.
  std::int64_t at_least = 0;
  std::uint32_t member = 0;
  std::uint64_t deadline_ns = kNever;
  std::uint64_t since_ns = 0;
  std::unordered_set<std::string_view> missing;
};

class Waiters {
 public:
  // Sets `missing` to the keys for which `exists` returns false.
  template <class Exists>
  WaiterId add(Waiter waiter, const Exists& exists);
  void remove(WaiterId id);
  // Returns null if it no longer waits.
  Waiter* find(WaiterId id);
  // Returns 0 if no such request waits.
  WaiterId find(ClientId client, RequestId request) const;
  // Returns the waiters for this key, the longest wait first.
  std::vector<WaiterId> missing(Space space, const std::string& key) const;
  // Call when the key was created. Returns whether the waiter has no missing keys left.
  bool found(WaiterId id, const std::string& key);
  // Updates the missing keys, because keys that existed may have been deleted. Returns whether none
  // is missing.
  template <class Exists>
  bool recheck(WaiterId id, const Exists& exists);
  std::vector<WaiterId> of_client(ClientId client) const;
  // Returns a waiter whose deadline has passed, or 0.
  WaiterId due(std::uint64_t now_ns) const;
  std::uint64_t next_deadline_ns() const;
  std::vector<WaiterId> all() const;
  // Returns the start of the longest wait, or nothing.
  std::optional<std::uint64_t> oldest_ns() const {
    if (waiters_.empty()) return std::nullopt;
    return waiters_.begin()->second.since_ns;
  }
  std::size_t size() const { return waiters_.size(); }
  std::size_t count(ClientId client) const;
  // Memory used by the waiters.
  std::size_t bytes() const { return bytes_; }
  std::size_t bytes(Space space) const { return bytes_of_[static_cast<std::size_t>(space)]; }
  std::size_t bytes(ClientId client) const;
  static std::size_t bytes_of(const std::vector<std::string>& keys);

 private:
  struct OfClient {
    std::map<RequestId, WaiterId> requests;
    std::size_t bytes = 0;
  };

  void index(WaiterId id, Waiter& waiter);
  void drop_from_index(WaiterId id, const Waiter& waiter, std::string_view key);

  WaiterId next_id_ = 1;
  std::map<WaiterId, Waiter> waiters_;
  std::array<std::unordered_map<std::string, std::set<WaiterId>>, kSpaces> by_key_;
  std::unordered_map<ClientId, OfClient> by_client_;
  std::set<std::pair<std::uint64_t, WaiterId>> by_deadline_;
  std::size_t bytes_ = 0;
  std::array<std::size_t, kSpaces> bytes_of_{};
};

template <class Exists>
WaiterId Waiters::add(Waiter waiter, const Exists& exists) {
  const WaiterId id = next_id_++;
  Waiter& stored = waiters_.emplace(id, std::move(waiter)).first->second;
  stored.missing.clear();
  for (const std::string& key : stored.keys) {
    if (!exists(key)) stored.missing.insert(key);
  }
  index(id, stored);
  return id;
}

template <class Exists>
bool Waiters::recheck(WaiterId id, const Exists& exists) {
  Waiter& waiter = waiters_.at(id);
  for (const std::string& key : waiter.keys) {
    if (!exists(key) && waiter.missing.insert(key).second)
      by_key_[static_cast<std::size_t>(waiter.space)][key].insert(id);
  }
  return waiter.missing.empty();
}

}  // namespace ivy::store
