#include "agent/daemon/half_open.h"

#include <vector>

namespace ivy {
namespace {

constexpr std::size_t kSuspectsShown = 3;

}  // namespace

HalfOpen::Entrance HalfOpen::enter(const std::string& address, const std::string& peer, Time now) {
  const std::lock_guard lock(mutex_);
  Entrance result;
  if (is_full(address) || entries_.size() >= limits_.total) forget_closed();
  const bool address_full = is_full(address);
  if (address_full || entries_.size() >= limits_.total) {
    result.why = address_full ? std::to_string(limits_.per_address) +
                                    " connections of this address have not proved themselves yet"
                              : std::to_string(limits_.total) +
                                    " connections have not proved themselves yet";
    result.evicted = oldest_waiting(address_full ? &address : nullptr);
    if (!result.evicted) return result;
    remove(*result.evicted);
  }
  result.id = next_++;
  entries_.emplace(*result.id, Entry{address, peer, false, now});
  ++per_address_[address];
  return result;
}

bool HalfOpen::hand_over(Id id, Time now, int descriptor) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  entry->second.handed = true;
  entry->second.since = now;
  entry->second.descriptor = descriptor;
  return true;
}

bool HalfOpen::holds(Id id) const {
  const std::lock_guard lock(mutex_);
  return entries_.count(id) != 0;
}

void HalfOpen::leave(Id id) {
  const std::lock_guard lock(mutex_);
  remove(id);
}

void HalfOpen::prove(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.peer != peer) continue;
    remove(id);
    return;
  }
}

std::string HalfOpen::suspects() {
  const std::lock_guard lock(mutex_);
  forget_closed();
  std::vector<const std::string*> peers;
  for (const auto& [id, entry] : entries_)
    if (entry.handed) peers.push_back(&entry.peer);
  if (peers.empty()) return "an address unknown";
  if (peers.size() == 1) return *peers.front();
  std::string text = "one of ";
  for (std::size_t i = 0; i < peers.size() && i < kSuspectsShown; ++i)
    text += (i == 0 ? "" : ", ") + *peers[i];
  if (peers.size() > kSuspectsShown)
    text += " and " + std::to_string(peers.size() - kSuspectsShown) + " more";
  return text;
}

void HalfOpen::expire(Time now) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto current = entry++;
    if (current->second.handed && now - current->second.since >= limits_.handshake)
      remove(current->first);
  }
}

std::size_t HalfOpen::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::optional<HalfOpen::Id> HalfOpen::oldest_waiting(const std::string* address) const {
  for (const auto& [id, entry] : entries_)
    if (!entry.handed && (address == nullptr || entry.address == *address)) return id;
  return std::nullopt;
}

bool HalfOpen::is_full(const std::string& address) const {
  const auto counted = per_address_.find(address);
  return counted != per_address_.end() && counted->second >= limits_.per_address;
}

void HalfOpen::forget_closed() {
  if (!is_open_) return;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto current = entry++;
    if (current->second.handed && !is_open_(current->second.peer, current->second.descriptor))
      remove(current->first);
  }
}

void HalfOpen::remove(Id id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  const auto counted = per_address_.find(entry->second.address);
  if (--counted->second == 0) per_address_.erase(counted);
  entries_.erase(entry);
}

}  // namespace ivy
