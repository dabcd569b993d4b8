// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/waiters.h"

namespace ivy::store {

void Waiters::index(WaiterId id, Waiter& waiter) {
  auto& keys = by_key_[static_cast<std::size_t>(waiter.space)];
  for (const std::string_view key : waiter.missing) keys[std::string(key)].insert(id);
  const std::size_t cost = bytes_of(waiter.keys);
  OfClient& client = by_client_[waiter.client];
  client.requests[waiter.request] = id;
  client.bytes += cost;
  bytes_ += cost;
  bytes_of_[static_cast<std::size_t>(waiter.space)] += cost;
  if (waiter.deadline_ns != kNever) by_deadline_.insert({waiter.deadline_ns, id});
}

void Waiters::drop_from_index(WaiterId id, const Waiter& waiter, std::string_view key) {
  auto& keys = by_key_[static_cast<std::size_t>(waiter.space)];
  const auto found = keys.find(std::string(key));
  if (found == keys.end()) return;
  found->second.erase(id);
  if (found->second.empty()) keys.erase(found);
}

void Waiters::remove(WaiterId id) {
  const auto found = waiters_.find(id);
  if (found == waiters_.end()) return;
  const Waiter& waiter = found->second;
  for (const std::string_view key : waiter.missing) drop_from_index(id, waiter, key);
  const auto client = by_client_.find(waiter.client);
  const std::size_t cost = bytes_of(waiter.keys);
  client->second.bytes -= cost;
  bytes_ -= cost;
  bytes_of_[static_cast<std::size_t>(waiter.space)] -= cost;
  client->second.requests.erase(waiter.request);
  if (client->second.requests.empty()) by_client_.erase(client);
  by_deadline_.erase({waiter.deadline_ns, id});
  waiters_.erase(found);
}

Waiter* Waiters::find(WaiterId id) {
  const auto found = waiters_.find(id);
  return found == waiters_.end() ? nullptr : &found->second;
}

WaiterId Waiters::find(ClientId client, RequestId request) const {
  const auto of = by_client_.find(client);
  if (of == by_client_.end()) return 0;
  const auto found = of->second.requests.find(request);
  return found == of->second.requests.end() ? 0 : found->second;
}

std::vector<WaiterId> Waiters::missing(Space space, const std::string& key) const {
  const auto& keys = by_key_[static_cast<std::size_t>(space)];
  const auto found = keys.find(key);
  if (found == keys.end()) return {};
  return {found->second.begin(), found->second.end()};
}

bool Waiters::found(WaiterId id, const std::string& key) {
  Waiter& waiter = waiters_.at(id);
  if (waiter.missing.erase(key) > 0) drop_from_index(id, waiter, key);
  return waiter.missing.empty();
}

std::vector<WaiterId> Waiters::of_client(ClientId client) const {
  std::vector<WaiterId> ids;
  const auto of = by_client_.find(client);
  if (of == by_client_.end()) return ids;
  for (const auto& [request, id] : of->second.requests) ids.push_back(id);
  return ids;
}

WaiterId Waiters::due(std::uint64_t now_ns) const {
  if (by_deadline_.empty() || by_deadline_.begin()->first > now_ns) return 0;
  return by_deadline_.begin()->second;
}

std::uint64_t Waiters::next_deadline_ns() const {
  return by_deadline_.empty() ? kNever : by_deadline_.begin()->first;
}

std::vector<WaiterId> Waiters::all() const {
  std::vector<WaiterId> ids;
  ids.reserve(waiters_.size());
  for (const auto& [id, waiter] : waiters_) ids.push_back(id);
  return ids;
}

std::size_t Waiters::count(ClientId client) const {
  const auto of = by_client_.find(client);
  return of == by_client_.end() ? 0 : of->second.requests.size();
}

std::size_t Waiters::bytes(ClientId client) const {
  const auto of = by_client_.find(client);
  return of == by_client_.end() ? 0 : of->second.bytes;
}

std::size_t Waiters::bytes_of(const std::vector<std::string>& keys) {
  // A string, an entry of `missing` and one of by_key_ for each key, besides the waiter itself.
  constexpr std::size_t kPerKeyBytes = 192;
  std::size_t bytes = kPerKeyBytes;
  for (const std::string& key : keys) bytes += kPerKeyBytes + 2 * key.size();
  return bytes;
}

}  // namespace ivy::store
