// SPDX-License-Identifier: Apache-2.0
// During a wait, waits() writes this rank's record. At a timeout, timed_out() follows the chain
// of records twice (find_suspect(), WaitChain::follow()) with a pause in between, so that a rank
// whose heartbeat has not changed is recognized as silent.
#include "comm/join/wait_graph.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Waits shorter than this write no record.
constexpr milliseconds kFirstReport{100};
constexpr milliseconds kBeatMin{100};
constexpr milliseconds kMaxBeat{1'000};
constexpr milliseconds kMaxLongBeat{10'000};
constexpr int kLongBeats = 30;
// A rank with heartbeats may be delayed by a busy machine and must not be blamed for that. The
// slack only lengthens timeouts between hosts that no rank in the chain explains.
constexpr milliseconds kBeatSlack{300};
constexpr milliseconds kStep{10};
// A rank on a different path of operations reports that as soon as it has waited for kFirstReport.
constexpr milliseconds kQueryTime{500};

nanoseconds beat_after(nanoseconds waited) {
  const nanoseconds most = std::clamp<nanoseconds>(waited / kLongBeats, kMaxBeat, kMaxLongBeat);
  return std::clamp<nanoseconds>(waited / 4, kBeatMin, most);
}

std::string name_of(std::int32_t rank) { return "rank " + std::to_string(rank); }

// Returns whether a rank whose record is of an earlier operation still waits there; the rank that
// it waits for then also blocks this operation. If there is no earlier heartbeat to compare with,
// it may still wait.
bool still_waits(const WaitRecord& record, const std::optional<WaitRecord>& earlier) {
  if (record.culprit < 0 && record.waits_for < 0) return false;
  return record.is_over != 0 || !earlier || earlier->beat != record.beat;
}

// Returns whether the culprit is missing because it waits in an earlier operation.
bool is_held_up(const WaitRecord& record, std::uint64_t sequence, const FindRecord& before,
                const FindRecord& now) {
  if (record.is_absent == 0) return false;
  const std::optional<WaitRecord> other = now(record.culprit);
  return other && other->entered.sequence < sequence && still_waits(*other, before(record.culprit));
}

// The chain of ranks that wait for each other, from a given rank to the rank to blame.
class WaitChain {
 public:
  WaitChain(std::int32_t self, std::uint64_t sequence, const FindRecord& before,
            const FindRecord& now)
      : self_(self), rank_(self), sequence_(sequence), before_(before), now_(now) {}

  Suspect follow() {
    while (chain_.size() < kChainMax &&
           std::find(chain_.begin(), chain_.end(), rank_) == chain_.end()) {
      const std::optional<WaitRecord> record = now_(rank_);
      const std::optional<WaitRecord> earlier = rank_ == self_ ? std::nullopt : before_(rank_);
      const bool has_not_entered = record && record->entered.sequence < sequence_;
      if (!record || (has_not_entered && !still_waits(*record, earlier)))
        return not_entered(record);
      // That rank is ahead, so its part of this operation was already sent.
      if (record->entered.sequence > sequence_) break;
      if (has_not_entered) step_back(*record, earlier);
      if (record->culprit >= 0 && !is_held_up(*record, sequence_, before_, now_))
        return {record->culprit, path_text_ + record->because, is_certain_};
      if (record->culprit < 0 && is_silent(*record, earlier)) return silent(*record);
      chain_.push_back(rank_);
      rank_ = record->culprit >= 0 ? record->culprit : record->waits_for;
      if (rank_ < 0) break;
    }
    return lagging_;
  }

 private:
  Suspect not_entered(const std::optional<WaitRecord>& record) const {
    return {rank_,
            path_text_ + name_of(rank_) + " is not waiting in it: it has not entered it" +
                (record ? "; the last operation that it waited in is " +
                              std::to_string(record->entered.sequence)
                        : ", or is doing something else in it"),
            false};
  }
  // Continues the chain in an earlier operation.
  void step_back(const WaitRecord& record, const std::optional<WaitRecord>& earlier) {
    sequence_ = record.entered.sequence;
    is_certain_ = is_certain_ && (earlier || record.is_over != 0);
    path_text_ += name_of(rank_) + " still waits in operation " + std::to_string(sequence_);
    if (lagging_.rank < 0) lagging_ = {rank_, path_text_, false};
    path_text_ += ", where ";
  }
  bool is_silent(const WaitRecord& record, const std::optional<WaitRecord>& earlier) const {
    return rank_ != self_ && record.is_over == 0 && earlier && earlier->beat == record.beat;
  }
  Suspect silent(const WaitRecord& record) const {
    return {rank_,
            path_text_ + name_of(rank_) + " is in it, was waiting for rank " +
                std::to_string(record.waits_for) + ", and does not respond",
            false};
  }

  const std::int32_t self_;
  std::int32_t rank_;
  std::uint64_t sequence_;
  const FindRecord& before_;
  const FindRecord& now_;
  std::vector<std::int32_t> chain_;
  std::string path_text_;  // Known states of ranks that wait in earlier operations.
  Suspect lagging_;        // The first of these ranks, to blame if no other rank is.
  bool is_certain_ = true;
};

}  // namespace

Suspect find_suspect(std::int32_t self, std::uint64_t sequence, const FindRecord& before,
                     const FindRecord& now) {
  return WaitChain(self, sequence, before, now).follow();
}

WaitGraph::WaitGraph(const EnteredOperations& entered, std::vector<std::int32_t> world_ranks,
                     WaitRecords& records)
    : entered_(entered), world_ranks_(std::move(world_ranks)), records_(records) {}

void WaitGraph::write(const LongWait& wait, bool is_over) {
  own_.entered = entered_;
  ++own_.beat;
  own_.is_over = is_over ? 1 : 0;
  own_.waits_for = wait.waits_for;
  own_.culprit = wait.culprit;
  own_.is_absent = wait.is_absent ? 1 : 0;
  own_.next_beat_ms = static_cast<std::uint32_t>(beat_after(wait.waited) / milliseconds(1));
  std::memset(own_.because, 0, sizeof own_.because);
  std::memcpy(own_.because, wait.because.data(),
              std::min(wait.because.size(), sizeof own_.because - 1));
  reported_sequence_ = wait.sequence;
  reported_at_ = steady_now();
  records_.write(entered_.rank, own_);
}

void WaitGraph::waits(const LongWait& wait) {
  if (wait.waited < kFirstReport) return;
  const bool is_same = reported_sequence_ == wait.sequence && own_.waits_for == wait.waits_for &&
                       own_.culprit == wait.culprit;
  // Do not write a record for each of several ranks that are awaited in turn.
  const auto since = steady_now() - reported_at_;
  // Never later than the previous record has promised.
  if (since < (is_same ? nanoseconds(milliseconds(own_.next_beat_ms)) : nanoseconds(kBeatMin)))
    return;
  write(wait, false);
}

bool WaitGraph::pause(nanoseconds time) const {
  const auto end = steady_now() + time;
  while (steady_now() < end) {
    if (records_.is_broken()) return false;
    poll(nullptr, 0, static_cast<int>(kStep.count()));
  }
  return !records_.is_broken();
}

std::optional<Suspicion> WaitGraph::timed_out(const LongWait& wait) {
  write(wait, true);
  if (wait.culprit >= 0 && !wait.is_absent) return Suspicion{wait.culprit, wait.because};
  std::vector<std::pair<std::int32_t, std::optional<WaitRecord>>> seen;
  const FindRecord remember = [&](std::int32_t rank) {
    seen.emplace_back(rank, records_.read(rank));
    return seen.back().second;
  };
  const FindRecord remembered = [&](std::int32_t rank) -> std::optional<WaitRecord> {
    for (const auto& [of, record] : seen) {
      if (of == rank) return record;
    }
    return std::nullopt;
  };
  const FindRecord nothing = [](std::int32_t) { return std::nullopt; };
  const Suspect first = find_suspect(entered_.rank, wait.sequence, nothing, remember);
  const bool is_rank = static_cast<std::size_t>(first.rank) < world_ranks_.size();
  if (first.is_certain && is_rank) return Suspicion{first.rank, first.because};
  // Others may have waited longer, and have slower heartbeats.
  nanoseconds beat = beat_after(wait.waited);
  for (const auto& [of, record] : seen) {
    if (!record) continue;
    beat = std::max<nanoseconds>(beat, std::min(milliseconds(record->next_beat_ms), kMaxLongBeat));
  }
  if (!pause(beat + kBeatSlack)) return std::nullopt;
  const FindRecord read = [this](std::int32_t rank) { return records_.read(rank); };
  const Suspect second = find_suspect(entered_.rank, wait.sequence, remembered, read);
  const bool is_other_rank = second.rank >= 0 && second.rank != entered_.rank &&
                             static_cast<std::size_t>(second.rank) < world_ranks_.size();
  if (!is_other_rank) return std::nullopt;
  return Suspicion{second.rank, second.because};
}

std::optional<EnteredOperations> WaitGraph::query_operations(std::int32_t rank,
                                                             std::uint64_t sequence) {
  // The other side may query this rank in the same way.
  LongWait wait;
  wait.sequence = sequence;
  wait.waits_for = rank;
  write(wait, false);
  const auto end = steady_now() + kQueryTime;
  while (true) {
    const std::optional<WaitRecord> record = records_.read(rank);
    if (record && record->entered.sequence >= sequence) return record->entered;
    if (steady_now() >= end || !pause(kStep)) return std::nullopt;
  }
}

}  // namespace ivy::comm
