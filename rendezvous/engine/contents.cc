// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/contents.h"

#include <algorithm>
#include <utility>

#include "proto/contract/text.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

// Memory that one key takes besides its bytes: a node of the map and two strings.
constexpr std::size_t kKeyOverheadBytes = 128;
// Memory that a barrier keeps per member from round to round.
constexpr std::size_t kMemberBytes = 64;

Error too_long(const char* what, std::size_t bytes, std::size_t limit) {
  return Error{Code::kInvalidArgument, std::string(what) + " of " + std::to_string(bytes) +
                                           " bytes is longer than " + std::to_string(limit)};
}

std::size_t cost_of(std::string_view key, std::string_view value) {
  return key.size() + value.size() + kKeyOverheadBytes;
}

std::size_t barrier_cost(std::string_view name, std::uint32_t size) {
  return name.size() + kKeyOverheadBytes + kMemberBytes * size;
}

}  // namespace

Result<void> check_key(const std::string& key) {
  if (key.size() > kMaxKeyBytes) return too_long("a key", key.size(), kMaxKeyBytes);
  return {};
}

Result<void> check_key_count(std::size_t count) {
  if (count <= kMaxKeysPerRequest) return {};
  return Error{Code::kInvalidArgument, "a request with " + std::to_string(count) +
                                           " keys; at most " + std::to_string(kMaxKeysPerRequest)};
}

Result<void> check_keys(const std::vector<std::string>& keys) {
  IVY_CHECK(check_key_count(keys.size()));
  for (const std::string& key : keys) IVY_CHECK(check_key(key));
  return {};
}

Result<void> check_entry(const std::string& key, const std::string& value) {
  IVY_CHECK(check_key(key));
  if (value.size() > kMaxValueBytes) return too_long("a value", value.size(), kMaxValueBytes);
  return {};
}

Result<void> Contents::check_capacity(std::size_t more_keys, std::size_t more_bytes) const {
  if (keys_ + more_keys > limits_.keys) {
    return Error{Code::kResourceExhausted,
                 "the store is full: it holds " + std::to_string(keys_) + " keys, its limit"};
  }
  if (bytes_ + more_bytes > limits_.store_bytes) {
    return Error{Code::kResourceExhausted, "the store is full: " + std::to_string(bytes_) +
                                               " of its " + std::to_string(limits_.store_bytes) +
                                               " bytes are used"};
  }
  return {};
}

Result<void> Contents::put(Space space, const std::string& key, std::string value) {
  IVY_CHECK(check_entry(key, value));
  auto& values = change(space).values;
  const auto found = values.find(key);
  const bool is_new = found == values.end();
  const std::size_t before = is_new ? 0 : found->second.value.size();
  const std::size_t after = is_new ? cost_of(key, value) : value.size();
  if (is_new || after > before) IVY_CHECK(check_capacity(is_new ? 1 : 0, after - before));
  bytes_ = bytes_ - before + after;
  keys_ += is_new ? 1 : 0;
  changes_ += 1;
  if (is_new) {
    values.emplace(key, Entry{std::move(value)});
  } else {
    found->second = Entry{std::move(value)};
  }
  return {};
}

// Checks everything before it stores anything. If a key is named twice, the last value wins. The
// capacity is checked as if a key that is named twice were two keys, which can only reject too
// early.
Result<void> Contents::put_all(Space space,
                               std::vector<std::pair<std::string, std::string>>& entries) {
  std::size_t more_bytes = 0;
  std::size_t more_keys = 0;
  IVY_CHECK(check_key_count(entries.size()));
  for (const auto& [key, value] : entries) {
    IVY_CHECK(check_entry(key, value));
    const Entry* present = find(space, key);
    if (present == nullptr) {
      more_keys += 1;
      more_bytes += cost_of(key, value);
    } else if (value.size() > present->value.size()) {
      more_bytes += value.size() - present->value.size();
    }
  }
  IVY_CHECK(check_capacity(more_keys, more_bytes));
  for (auto& [key, value] : entries) IVY_ASSERT(put(space, key, std::move(value)).ok());
  return {};
}

Result<std::int64_t> Contents::add(Space space, const std::string& key, std::int64_t delta) {
  const Entry* present = find(space, key);
  const std::optional<std::int64_t> before =
      present == nullptr ? 0 : to_number<std::int64_t>(present->value);
  std::int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, delta, &sum)) {
    return Error{Code::kInvalidArgument, "add to key '" + shown_key(key) +
                                             (before ? "': the sum has more than 64 bits"
                                                     : "': its value is not a number")};
  }
  IVY_CHECK(put(space, key, std::to_string(sum)));
  return sum;
}

Result<void> Contents::append(Space space, const std::string& key, const std::string& more) {
  Entry& entry = change(space).values.find(key)->second;
  const std::size_t length = entry.value.size() + more.size();
  if (length > kMaxValueBytes) return too_long("a value", length, kMaxValueBytes);
  IVY_CHECK(check_capacity(0, more.size()));
  bytes_ += more.size();
  changes_ += 1;
  entry.value += more;
  return {};
}

bool Contents::erase(Space space, const std::string& key) {
  auto& values = change(space).values;
  const auto found = values.find(key);
  if (found == values.end()) return false;
  bytes_ -= cost_of(key, found->second.value);
  keys_ -= 1;
  changes_ += 1;
  values.erase(found);
  return true;
}

Result<std::size_t> Contents::push(Space space, const std::string& key, std::string item) {
  IVY_CHECK(check_entry(key, item));
  const std::size_t cost = cost_of(key, item);
  IVY_CHECK(check_capacity(1, cost));
  bytes_ += cost;
  keys_ += 1;
  changes_ += 1;
  Queue& queue = change(space).queues[key];
  queue.push_back(std::move(item));
  return queue.size();
}

std::string Contents::pop(Space space, const std::string& key) {
  auto& queues = change(space).queues;
  const auto queue = queues.find(key);
  std::string item = std::move(queue->second.front());
  queue->second.pop_front();
  bytes_ -= cost_of(key, item);
  keys_ -= 1;
  changes_ += 1;
  if (queue->second.empty()) queues.erase(queue);
  return item;
}

Result<Contents::Barrier*> Contents::barrier_for(Space space, const store::Barrier& request) {
  Barrier* known = find_barrier(space, request.name);
  if (known != nullptr && known->size == request.size) return known;
  if (known != nullptr && !known->arrived.empty()) {
    return Error{Code::kInvalidArgument,
                 "barrier '" + shown_key(request.name) + "': this member expects " +
                     std::to_string(request.size) + " members, others expect " +
                     std::to_string(known->size)};
  }
  const bool is_new = known == nullptr;
  const std::size_t cost = barrier_cost(request.name, request.size);
  const std::size_t before = is_new ? 0 : known->cost_bytes;
  IVY_CHECK(check_capacity(is_new ? 1 : 0, cost > before ? cost - before : 0));
  bytes_ = bytes_ - before + cost;
  keys_ += is_new ? 1 : 0;
  Barrier& barrier = is_new ? change(space).barriers[request.name] : *known;
  barrier.size = request.size;
  barrier.cost_bytes = cost;
  return &barrier;
}

Contents::Barrier* Contents::find_barrier(Space space, std::string_view name) {
  auto& barriers = change(space).barriers;
  const auto found = barriers.find(name);
  return found == barriers.end() ? nullptr : &found->second;
}

void Contents::clear() {
  spaces_ = {};
  bytes_ = 0;
  keys_ = 0;
}

}  // namespace ivy::store
