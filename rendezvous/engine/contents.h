// SPDX-License-Identifier: Apache-2.0
// The store's data: values, queues and barriers of each space, within the store's limits. A change
// is either rejected as a whole or made and counted; the counters always match the contents.
//
// Pure. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/requests.h"
#include "rendezvous/engine/waiters.h"

namespace ivy::store {

struct EngineLimits {
  std::size_t store_bytes = kMaxStoreBytes;
  std::size_t keys = kMaxKeys;
  std::size_t waits_per_client = 4096;
  std::size_t watches_per_client = 1024;  // Every write scans all of them.
  // Limits of the keys that waiting requests name, which are kept until they are answered.
  std::size_t waiting_bytes_per_client = 64u << 20;
  std::size_t waiting_bytes = 1u << 30;
  // The share of waiting_bytes that torch's clients may use, because they do not authenticate.
  std::size_t torch_waiting_bytes = 256u << 20;
};

// The functions check_*() fail with InvalidArgument for a key, a value or a number of keys beyond
// the limits of a request (proto/wire/store_wire.h).
Result<void> check_key(const std::string& key);
Result<void> check_key_count(std::size_t count);
Result<void> check_keys(const std::vector<std::string>& keys);
Result<void> check_entry(const std::string& key, const std::string& value);

class Contents {
 public:
  struct Entry {
    std::string value;
  };
  struct Barrier {
    std::uint32_t size = 0;
    std::uint64_t round = 1;
    std::map<std::uint32_t, std::set<WaiterId>> arrived = {};
    std::map<std::uint32_t, std::uint64_t> last_calls = {};  // Arrivals of the previous round.
    std::size_t cost_bytes = 0;
    // Only for barriers that end with a loss.
    bool ends_with_a_loss = false;
    std::optional<std::uint32_t> lost_member = {};
    // The answer to all members once one was lost.
    Number loss() const { return {-1 - static_cast<std::int64_t>(*lost_member)}; }
  };
  using Queue = std::deque<std::string>;
  struct KeySpace {
    std::map<std::string, Entry, std::less<>> values;
    std::map<std::string, Queue, std::less<>> queues;  // Empty queues are removed.
    std::map<std::string, Barrier, std::less<>> barriers;
  };

  explicit Contents(const EngineLimits& limits) : limits_(limits) {}

  const KeySpace& of(Space space) const { return spaces_[static_cast<std::size_t>(space)]; }
  // Returns null if the key has no value.
  const Entry* find(Space space, const std::string& key) const {
    const auto found = of(space).values.find(key);
    return found == of(space).values.end() ? nullptr : &found->second;
  }
  bool exists(Space space, const std::string& key) const {
    return of(space).values.contains(key) || of(space).queues.contains(key);
  }

  Result<void> put(Space space, const std::string& key, std::string value);
  Result<void> put_all(Space space, std::vector<std::pair<std::string, std::string>>& entries);
  // Adds to the number in the key's value (0 if missing). Fails with InvalidArgument if the value
  // is not a number or the sum exceeds 64 bits.
  Result<std::int64_t> add(Space space, const std::string& key, std::int64_t delta);
  // Appends to the value, which must exist.
  Result<void> append(Space space, const std::string& key, const std::string& more);
  // Returns whether the key existed.
  bool erase(Space space, const std::string& key);
  // Returns the new length of the queue.
  Result<std::size_t> push(Space space, const std::string& key, std::string item);
  // Takes the oldest item of a queue, which must exist; removes the queue with its last item.
  std::string pop(Space space, const std::string& key);
  // Returns the barrier of that name; creates it if needed. Its size may change only between
  // rounds.
  Result<Barrier*> barrier_for(Space space, const store::Barrier& request);
  // Returns null if there is no such barrier.
  Barrier* find_barrier(Space space, std::string_view name);

  void clear();
  std::size_t bytes() const { return bytes_; }
  std::size_t keys() const { return keys_; }
  std::uint64_t changes() const { return changes_; }
  // Counts progress other than a write: a satisfied wait, or a member that arrived.
  void count_change() { changes_ += 1; }

 private:
  KeySpace& change(Space space) { return spaces_[static_cast<std::size_t>(space)]; }
  Result<void> check_capacity(std::size_t more_keys, std::size_t more_bytes) const;

  const EngineLimits limits_;
  std::array<KeySpace, kSpaces> spaces_;
  std::size_t bytes_ = 0;
  std::size_t keys_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace ivy::store
