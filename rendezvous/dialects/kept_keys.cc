#include "rendezvous/dialects/kept_keys.h"

#include <utility>

namespace ivy::store {
namespace {

// The most keys whose misses are counted; beyond it counting begins anew.
constexpr std::size_t kCountedKeys = 4096;

std::size_t cost_of(const std::string& name, const std::optional<std::string>& value) {
  return name.size() + (value ? value->size() : 0);
}

}  // namespace

std::string name_of(Space space, std::string_view key) {
  std::string name(1, static_cast<char>(space));
  name += key;
  return name;
}

const KeptKeys::Kept* KeptKeys::find(const std::string& name) const {
  const auto found = kept_.find(name);
  return found == kept_.end() || is_being_written(name) ? nullptr : &found->second;
}

const std::string* KeptKeys::value(const std::string& name) const {
  const Kept* found = find(name);
  return found == nullptr || !found->value ? nullptr : &*found->value;
}

void KeptKeys::keep(const std::string& name, std::optional<std::string> value) {
  forget(name);
  const std::size_t cost = cost_of(name, value);
  if (is_being_written(name) || kept_.size() >= most_keys_ || bytes_ + cost > most_bytes_) return;
  bytes_ += cost;
  kept_[name] = {std::move(value)};
}

void KeptKeys::forget(const std::string& name) {
  misses_.erase(name);
  const auto found = kept_.find(name);
  if (found == kept_.end()) return;
  bytes_ -= cost_of(name, found->second.value);
  kept_.erase(found);
}

void KeptKeys::clear() {
  kept_.clear();
  bytes_ = 0;
}

void KeptKeys::begin_write(const std::string& name) {
  forget(name);
  writes_[name] += 1;
}

void KeptKeys::end_write(const std::string& name) {
  const auto found = writes_.find(name);
  if (found != writes_.end() && --found->second == 0) writes_.erase(found);
}

void KeptKeys::count_miss(const std::string& name) {
  if (misses_.size() >= kCountedKeys) misses_.clear();
  misses_[name] += 1;
}

int KeptKeys::misses(const std::string& name) const {
  const auto found = misses_.find(name);
  return found == misses_.end() ? 0 : found->second;
}

}  // namespace ivy::store
