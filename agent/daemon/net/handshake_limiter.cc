// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/handshake_limiter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <vector>

namespace ivy {
namespace {

constexpr std::size_t kSuspectsShown = 3;
// The hosts of launchers; beyond this number the address that authenticated longest ago is
// forgotten.
constexpr std::size_t kMaxProved = 256;

// The key under which an address is counted: an IPv6 host may have all of its /64.
std::string counted_as(const std::string& address) {
  in6_addr whole{};
  if (inet_pton(AF_INET6, address.c_str(), &whole) != 1) return address;
  std::fill(std::begin(whole.s6_addr) + 8, std::end(whole.s6_addr), std::uint8_t{0});
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, &whole, text.data(), static_cast<socklen_t>(text.size()));
  return std::string(text.data()) + "/64";
}

}  // namespace

HandshakeLimiter::EnterResult HandshakeLimiter::enter(const std::string& typed,
                                                      const std::string& peer, Time now) {
  const std::string address = counted_as(typed);
  const std::lock_guard lock(mutex_);
  EnterResult result;
  if (is_full(address) || is_full_for(address)) forget_closed();
  const bool address_full = is_full(address);
  if (address_full || is_full_for(address)) {
    result.why = address_full
                     ? std::to_string(limits_.per_address) +
                           " connections from this address have not authenticated yet"
                     : std::to_string(entries_.size()) + " connections have not authenticated yet";
    result.evicted = next_to_evict(address_full ? address : busiest_address());
    if (!result.evicted) return result;
    evict(*result.evicted);
  }
  result.id = next_++;
  entries_.emplace(*result.id, Entry{address, peer, false, now});
  ++per_address_[address];
  return result;
}

bool HandshakeLimiter::hand_over(Id id, Time now, int descriptor) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  entry->second.handed = true;
  entry->second.since = now;
  entry->second.descriptor = descriptor;
  return true;
}

bool HandshakeLimiter::holds(Id id) const {
  const std::lock_guard lock(mutex_);
  return entries_.count(id) != 0;
}

void HandshakeLimiter::leave(Id id) {
  const std::lock_guard lock(mutex_);
  remove(id);
}

void HandshakeLimiter::mark_proved(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.peer != peer) continue;
    remember(entry.address);
    remove(id);
    return;
  }
}

std::string HandshakeLimiter::suspects() {
  const std::lock_guard lock(mutex_);
  forget_closed();
  std::vector<const std::string*> peers;
  for (const auto& [id, entry] : entries_)
    if (entry.handed) peers.push_back(&entry.peer);
  if (peers.empty()) return "an unknown address";
  if (peers.size() == 1) return *peers.front();
  std::string text = "one of ";
  for (std::size_t i = 0; i < peers.size() && i < kSuspectsShown; ++i)
    text += (i == 0 ? "" : ", ") + *peers[i];
  if (peers.size() > kSuspectsShown)
    text += " and " + std::to_string(peers.size() - kSuspectsShown) + " more";
  return text;
}

void HandshakeLimiter::expire(Time now) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto current = entry++;
    if (current->second.handed && now - current->second.since >= limits_.handshake)
      remove(current->first);
  }
}

std::size_t HandshakeLimiter::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool HandshakeLimiter::is_full(const std::string& address) const {
  const auto counted = per_address_.find(address);
  return counted != per_address_.end() && counted->second >= limits_.per_address;
}

bool HandshakeLimiter::is_proved(const std::string& address) const {
  return std::find(proved_.begin(), proved_.end(), address) != proved_.end();
}

bool HandshakeLimiter::is_full_for(const std::string& address) const {
  if (entries_.size() >= limits_.total) return true;
  if (is_proved(address)) return false;
  std::size_t unproved = 0;
  for (const auto& [other, count] : per_address_)
    if (!is_proved(other)) unproved += count;
  return unproved >= limits_.total - limits_.kept_for_proved;
}

// The address with most connections. Addresses that have authenticated come last.
std::string HandshakeLimiter::busiest_address() const {
  std::tuple<bool, std::size_t> most{false, 0};
  std::string busiest;
  for (const auto& [id, entry] : entries_) {
    const std::tuple<bool, std::size_t> here{!is_proved(entry.address),
                                             per_address_.at(entry.address)};
    if (!busiest.empty() && here <= most) continue;
    most = here;
    busiest = entry.address;
  }
  return busiest;
}

std::optional<HandshakeLimiter::Id> HandshakeLimiter::next_to_evict(
    const std::string& address) const {
  std::optional<Id> handed;
  for (const auto& [id, entry] : entries_) {
    if (entry.address != address) continue;
    if (!entry.handed) return id;
    if (!handed && handed_ != nullptr) handed = id;
  }
  return handed;
}

void HandshakeLimiter::evict(Id id) {
  const Entry& entry = entries_.at(id);
  if (entry.handed) handed_->shut_down(entry.peer, entry.descriptor);
  remove(id);
}

void HandshakeLimiter::remember(const std::string& address) {
  std::erase(proved_, address);
  if (proved_.size() >= kMaxProved) proved_.pop_front();
  proved_.push_back(address);
}

void HandshakeLimiter::forget_closed() {
  if (handed_ == nullptr) return;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto current = entry++;
    if (current->second.handed &&
        !handed_->is_open(current->second.peer, current->second.descriptor))
      remove(current->first);
  }
}

void HandshakeLimiter::remove(Id id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  const auto counted = per_address_.find(entry->second.address);
  if (--counted->second == 0) per_address_.erase(counted);
  entries_.erase(entry);
}

}  // namespace ivy
