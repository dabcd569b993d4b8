// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/rank_event_log.h"

#include <utility>

namespace ivy {

using comm_status::RankState;

void RankEventLog::begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank) {
  *this = RankEventLog();
  generation_ = generation;
  host_of_rank_ = std::move(host_of_rank);
}

bool RankEventLog::set(std::size_t host, const RankUpdate& rank) {
  const auto state = static_cast<RankState>(rank.state());
  Known& known = ranks_[rank.rank()];
  const bool is_better = known.state == RankState::kDied &&
                         (state == RankState::kExited || state == RankState::kSignalled);
  const bool is_open = known.state == RankState::kAlive ||
                       (known.state == RankState::kLeft && state == RankState::kAlive);
  if (state == known.state || (!is_open && !is_better)) return false;
  known.state = state;
  is_urgent_ |= state != RankState::kLeft && state != RankState::kAlive;
  entries_.push_back({host, rank, std::nullopt});
  return true;
}

bool RankEventLog::take(std::size_t host, const RankUpdates& updates) {
  if (updates.generation() != generation_) return false;
  if (updates.listening()) cursors_.emplace(host, 0);
  bool changed = updates.listening() && !entries_.empty();
  is_urgent_ |= changed;
  for (const RankUpdate& rank : updates.ranks()) {
    if (!has_rank(host, rank.rank())) continue;
    ranks_[rank.rank()].reported_by_host = true;
    changed |= set(host, rank);
  }
  for (const RankReport& report : updates.reports()) {
    if (!has_rank(host, report.reporter())) continue;
    entries_.push_back({host, std::nullopt, report});
    is_urgent_ = true;
    changed = true;
  }
  return changed;
}

bool RankEventLog::worker_ended(std::size_t host, const RankUpdate& rank) {
  const auto known = ranks_.find(rank.rank());
  const bool is_reported = known != ranks_.end() && known->second.reported_by_host;
  return !is_reported && set(host, rank);
}

bool RankEventLog::rank_lost(std::size_t host, std::uint32_t rank, RankState state) {
  RankUpdate lost;
  lost.set_rank(rank);
  lost.set_state(static_cast<std::uint32_t>(state));
  return set(host, lost);
}

bool RankEventLog::rank_restarted(std::size_t host, std::uint32_t rank, std::uint32_t rejoins,
                                  std::int32_t pid) {
  if (!has_rank(host, rank)) return false;
  RankUpdate updates;
  updates.set_rank(rank);
  updates.set_pid(pid);
  updates.set_rejoins(rejoins);
  // Forgets that the host has reported the previous process itself: it need not do so for this one.
  ranks_[rank] = Known();
  entries_.push_back({host, updates, std::nullopt});
  is_urgent_ = true;
  return true;
}

Operations RankEventLog::of_own_ranks(std::size_t host, const Operations& answer) const {
  Operations own = answer;
  own.clear_ranks();
  own.clear_usage();
  for (const RankOperations& rank : answer.ranks())
    if (has_rank(host, rank.rank())) *own.add_ranks() = rank;
  for (const RankUsage& usage : answer.usage())
    if (has_rank(host, usage.rank())) *own.add_usage() = usage;
  return own;
}

std::vector<std::size_t> RankEventLog::listeners() const {
  std::vector<std::size_t> hosts;
  for (const auto& [host, cursor] : cursors_) hosts.push_back(host);
  return hosts;
}

std::optional<RankUpdates> RankEventLog::next_for(std::size_t host) {
  const auto found = cursors_.find(host);
  if (found == cursors_.end()) return std::nullopt;
  RankUpdates updates;
  updates.set_generation(generation_);
  for (; found->second < entries_.size(); ++found->second) {
    const Entry& entry = entries_[found->second];
    if (entry.origin == host) continue;
    if (entry.rank) *updates.add_ranks() = *entry.rank;
    if (entry.report) *updates.add_reports() = *entry.report;
  }
  if (updates.ranks_size() == 0 && updates.reports_size() == 0) return std::nullopt;
  return updates;
}

void RankEventLog::mark_all_sent() {
  is_urgent_ = false;
  // Ranks may leave and return any number of times, so the log is compacted.
  if (entries_.size() < 2 * (ranks_.size() + kMaxReports)) return;
  std::map<std::uint32_t, std::size_t> newest;
  std::size_t reports = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].rank) newest[entries_[i].rank->rank()] = i;
    if (entries_[i].report) ++reports;
  }
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const bool is_old_report = entries_[i].report && reports-- > kMaxReports;
    const bool is_overtaken = entries_[i].rank && newest[entries_[i].rank->rank()] != i;
    if (!is_old_report && !is_overtaken) kept.push_back(std::move(entries_[i]));
  }
  entries_ = std::move(kept);
  for (auto& [host, cursor] : cursors_) cursor = entries_.size();
}

}  // namespace ivy
