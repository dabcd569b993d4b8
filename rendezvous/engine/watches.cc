// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/watches.h"

#include <utility>

namespace ivy::store {

std::size_t Watches::count(ClientId client) const {
  const auto found = counts_.find(client);
  return found == counts_.end() ? 0 : found->second;
}

void Watches::count_down(ClientId client, std::size_t by) {
  const auto found = counts_.find(client);
  if (found == counts_.end()) return;
  found->second -= by;
  if (found->second == 0) counts_.erase(found);
}

void Watches::add(Space space, Entry watch, bool is_exact) {
  const auto index = static_cast<std::size_t>(space);
  counts_[watch.client] += 1;
  if (is_exact) {
    std::string key = watch.key;
    by_key_[index].emplace(std::move(key), std::move(watch));
  } else {
    by_prefix_[index].push_back(std::move(watch));
  }
}

void Watches::end(ClientId client, std::optional<RequestId> only) {
  if (!counts_.contains(client)) return;
  const auto ends = [&](const Entry& watch) {
    return watch.client == client && (!only || watch.request == *only);
  };
  std::size_t ended = 0;
  for (auto& watches : by_prefix_) ended += std::erase_if(watches, ends);
  for (auto& watches : by_key_)
    ended += std::erase_if(watches, [&](const auto& entry) { return ends(entry.second); });
  count_down(client, ended);
}

void Watches::clear() { *this = Watches(); }

void Watches::notify(Space space, const Changed& change, Replies& out) {
  for (const Entry& watch : by_prefix_[static_cast<std::size_t>(space)]) {
    if (!change.key.starts_with(watch.key)) continue;
    answer_to(watch.client, watch.request, change, out);
  }
  const auto [begin, end] = by_key_[static_cast<std::size_t>(space)].equal_range(change.key);
  for (auto at = begin; at != end; ++at)
    answer_to(at->second.client, at->second.request, change, out);
}

}  // namespace ivy::store
