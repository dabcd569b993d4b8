// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/rank_event_log.h"

#include <utility>

namespace ivy {

using comm_status::RankState;

namespace {

// Returns whether a new state of a rank replaces the known one.
//
//     known \ new            kAlive  kLeft  kExited, kSignalled  kDied, kHostLost
//     kAlive                   -      yes           yes                 yes
//     kLeft                   yes      -            no                  no
//     kDied                   no      no            yes                 no
//     kExited, kSignalled,
//     kHostLost               no      no            no                  no
//
// A rank that has left owes its peers nothing, so its exit is no event; another process of it may
// attach. The first end of a rank counts, because later ones repeat it or result from the stop of
// the job. Only kDied is replaced, by the exit status that it lacks. rank_restarted() makes a rank
// alive again without this function.
bool replaces(RankState known, RankState state) {
  switch (known) {
    case RankState::kAlive:
      return state != RankState::kAlive;
    case RankState::kLeft:
      return state == RankState::kAlive;
    case RankState::kDied:
      return state == RankState::kExited || state == RankState::kSignalled;
    case RankState::kExited:
    case RankState::kSignalled:
    case RankState::kHostLost:
      break;
  }
  return false;
}

}  // namespace

void RankEventLog::begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank) {
  generation_ = generation;
  host_of_rank_ = std::move(host_of_rank);
  ranks_.clear();
  entries_.clear();
  cursors_.clear();
  is_urgent_ = false;
}

bool RankEventLog::change_state(std::size_t host, const RankUpdate& rank) {
  const auto state = static_cast<RankState>(rank.state());
  Known& known = ranks_[rank.rank()];
  if (!replaces(known.state, state)) return false;
  known.state = state;
  // Deaths are urgent, because peers may be waiting for the dead rank.
  is_urgent_ |= state != RankState::kLeft && state != RankState::kAlive;
  entries_.push_back({host, rank, std::nullopt});
  return true;
}

bool RankEventLog::receive(std::size_t host, const RankUpdates& updates) {
  if (updates.generation() != generation_) return false;
  bool must_send = false;
  if (updates.listening()) {
    cursors_.emplace(host, 0);
    must_send = !entries_.empty();
    is_urgent_ |= must_send;
  }
  for (const RankUpdate& rank : updates.ranks()) {
    if (!has_rank(host, rank.rank())) continue;
    ranks_[rank.rank()].reported_by_host = true;
    must_send |= change_state(host, rank);
  }
  for (const RankReport& report : updates.reports()) {
    if (!has_rank(host, report.reporter())) continue;
    entries_.push_back({host, std::nullopt, report});
    is_urgent_ = true;
    must_send = true;
  }
  return must_send;
}

bool RankEventLog::worker_ended(std::size_t host, const RankUpdate& rank) {
  if (!has_rank(host, rank.rank())) return false;
  const auto known = ranks_.find(rank.rank());
  const bool is_reported = known != ranks_.end() && known->second.reported_by_host;
  return !is_reported && change_state(host, rank);
}

bool RankEventLog::rank_restarted(std::size_t host, std::uint32_t rank, std::uint32_t rejoins,
                                  std::int32_t pid) {
  if (!has_rank(host, rank)) return false;
  RankUpdate restarted;
  restarted.set_rank(rank);
  restarted.set_pid(pid);
  restarted.set_rejoins(rejoins);
  // Forgets that the host has reported the previous process itself: it need not do so for this one.
  ranks_[rank] = Known();
  entries_.push_back({host, restarted, std::nullopt});
  is_urgent_ = true;
  return true;
}

void RankEventLog::move_ranks(const std::vector<std::uint32_t>& ranks, std::size_t host) {
  for (const std::uint32_t rank : ranks) {
    if (rank >= host_of_rank_.size()) continue;
    cursors_.erase(host_of_rank_[rank]);
    host_of_rank_[rank] = host;
  }
}

bool RankEventLog::rank_lost(std::size_t host, std::uint32_t rank, RankState state) {
  if (!has_rank(host, rank)) return false;
  RankUpdate lost;
  lost.set_rank(rank);
  lost.set_state(static_cast<std::uint32_t>(state));
  return change_state(host, lost);
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
  std::size_t reports_to_drop = reports > kMaxReports ? reports - kMaxReports : 0;
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].rank && newest[entries_[i].rank->rank()] != i) continue;
    if (entries_[i].report && reports_to_drop > 0) {
      --reports_to_drop;
      continue;
    }
    kept.push_back(std::move(entries_[i]));
  }
  entries_ = std::move(kept);
  for (auto& [host, cursor] : cursors_) cursor = entries_.size();
}

Operations RankEventLog::without_foreign_ranks(std::size_t host, const Operations& answer) const {
  Operations own = answer;
  own.clear_ranks();
  own.clear_usage();
  for (const RankOperations& rank : answer.ranks())
    if (has_rank(host, rank.rank())) *own.add_ranks() = rank;
  for (const RankUsage& usage : answer.usage())
    if (has_rank(host, usage.rank())) *own.add_usage() = usage;
  return own;
}

}  // namespace ivy
