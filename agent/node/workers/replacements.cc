// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/replacements.h"

#include <algorithm>
#include <utility>

namespace ivy {

void Replacements::begin(bool waits) {
  waits_ = waits;
  slots_.clear();
}

void Replacements::failed(std::uint32_t rank) {
  if (waits_) slots_.emplace(rank, std::nullopt);
}

bool Replacements::order(const Ordered& ordered) {
  const auto slot = slots_.find(ordered.rank);
  if (slot == slots_.end() || slot->second) return false;
  slot->second = ordered;
  return true;
}

std::vector<Replacements::Ordered> Replacements::take_due(
    std::uint64_t now_ns, const std::function<bool(std::uint32_t)>& is_over) {
  std::vector<Ordered> due;
  for (const auto& [rank, ordered] : slots_)
    if (ordered && ordered->due_ns <= now_ns && is_over(rank)) due.push_back(*ordered);
  for (const Ordered& ordered : due) slots_.erase(ordered.rank);
  return due;
}

std::optional<std::uint64_t> Replacements::next_due_ns() const {
  std::optional<std::uint64_t> next;
  for (const auto& [rank, ordered] : slots_)
    if (ordered) next = std::min(next.value_or(ordered->due_ns), ordered->due_ns);
  return next;
}

std::vector<std::uint32_t> Replacements::give_up() {
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, ordered] : std::exchange(slots_, {}))
    if (ordered) ranks.push_back(rank);
  waits_ = false;
  return ranks;
}

}  // namespace ivy
