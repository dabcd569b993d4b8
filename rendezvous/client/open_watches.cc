// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/open_watches.h"

#include <utility>

#include "rendezvous/dialects/codec.h"

namespace ivy::store {
namespace {

std::size_t bytes_of(const Changed& change) {
  return sizeof change + change.key.size() + change.value.size();
}

}  // namespace

void OpenWatches::add(std::uint32_t id, std::string_view prefix) { watches_[id].prefix = prefix; }

void OpenWatches::note_rejected(std::uint32_t id) {
  const auto found = watches_.find(id);
  if (found != watches_.end()) found->second.state = State::kInvalid;
}

void OpenWatches::note_missed(Watched& watch) {
  watch.changes.push_back({Changed::Kind::kOverflow, {}, {}});
  watch.bytes += sizeof(Changed);
}

bool OpenWatches::take(std::uint32_t id, std::string_view payload) {
  Watched& watch = watches_.at(id);
  if (payload.empty()) {  // The answer to the request; changes follow it.
    watch.state = State::kOpen;
    if (std::exchange(watch.was_open, true)) note_missed(watch);
    return true;
  }
  PayloadReader in(payload);
  std::optional<Changed> change = take_change(in);
  if (!change) return false;
  if (change->kind == Changed::Kind::kOverflow) {
    watch.state = State::kInvalid;  // Opening it again records that changes were missed.
    return true;
  }
  watch.bytes += bytes_of(*change);
  watch.changes.push_back(std::move(*change));
  if (watch.changes.size() <= kMaxChanges && watch.bytes <= kMaxBytes) return true;
  watch.changes.clear();
  watch.bytes = 0;
  note_missed(watch);
  return true;
}

void OpenWatches::invalidate() {
  for (auto& [id, watch] : watches_)
    if (watch.state == State::kOpen) watch.state = State::kInvalid;
}

std::optional<Changed> OpenWatches::next(std::uint32_t id) {
  Watched& watch = watches_.at(id);
  if (watch.changes.empty()) return std::nullopt;
  Changed change = std::move(watch.changes.front());
  watch.changes.pop_front();
  watch.bytes -= bytes_of(change);
  return change;
}

}  // namespace ivy::store
