// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/peer_liveness.h"

#include <algorithm>

#include "comm/group/p2p/message_texts.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

// A rank may finalize as soon as it has sent a message, whose connection may not be accepted yet.
constexpr milliseconds kAbsenceGrace{150};

}  // namespace

// Returns whether a request waits for that rank and there is no connection whose end would reveal
// that the rank has left.
bool PeerLiveness::is_awaited(const MessagePeer& peer) const {
  if (peer.rank == options_.self) return false;
  const bool is_remote = options_.is_remote(peer.rank);
  if (!peer.sends.empty() && (!is_remote || peer.sink == nullptr)) return true;
  if (is_remote && peer.source != nullptr) return false;
  return peer.receiver() != nullptr || traffic_.matching().is_wanted(peer.rank, false);
}

// Returns the next rank to check, in turn. The detector reports that a rank has finalized only to a
// caller that waits for this rank.
std::int32_t PeerLiveness::next_awaited() {
  const auto count = static_cast<std::int32_t>(traffic_.peers().size());
  for (std::int32_t step = 1; step <= count; ++step) {
    const std::int32_t rank = (awaited_last_ + step) % count;
    if (is_awaited(*traffic_.peers()[static_cast<std::size_t>(rank)])) return awaited_last_ = rank;
  }
  return FailureDetector::kNoRank;
}

bool PeerLiveness::is_listening(std::int32_t rank) const {
  return connections_->is_peer_listening(options_.peer(rank).address);
}

// Probes the listeners of awaited ranks on other hosts: a rank that died before it dialled has no
// connection that could break. Sets `missed` to that rank.
MaybeFailure PeerLiveness::find_unreachable(std::int32_t& missed) {
  std::vector<std::int32_t> suspects;
  {
    const std::lock_guard lock(mutex_);
    const auto now = steady_now();
    if (now - probed_at_ < PeerConnections::kProbePause) return std::nullopt;
    probed_at_ = now;
    for (const std::unique_ptr<MessagePeer>& peer : traffic_.peers()) {
      if (options_.is_remote(peer->rank) && is_awaited(*peer)) suspects.push_back(peer->rank);
    }
  }
  const auto absent = std::find_if_not(suspects.begin(), suspects.end(),
                                       [this](std::int32_t rank) { return is_listening(rank); });
  if (absent == suspects.end()) return std::nullopt;
  missed = *absent;
  const std::lock_guard lock(mutex_);
  return detector_.connection_failure(missed, "it is no longer reachable");
}

PeerLiveness::Presence PeerLiveness::presence_of(const MessagePeer& peer) const {
  if (peer.has_begun()) return Presence::kPresent;
  const bool is_remote = options_.is_remote(peer.rank);
  if (is_remote && peer.source != nullptr) {
    const bool is_open = peer.source->state() == StreamState::kOpen;
    return is_open ? Presence::kPresent : Presence::kLeft;
  }
  if (detector_.has_left(peer.rank)) return Presence::kLeft;
  return is_remote ? Presence::kUnknown : Presence::kPresent;
}

void PeerLiveness::note_present(std::int32_t rank) {
  present_last_ = rank;
  absent_since_.reset();
}

// Starts with the rank that was present last, so that usually no other rank is checked. If no rank
// is known to be present, `unknown` has the ranks to probe.
bool PeerLiveness::is_any_present(std::vector<std::int32_t>& unknown) {
  const auto count = static_cast<std::int32_t>(traffic_.peers().size());
  for (std::int32_t step = 0; step < count; ++step) {
    const std::int32_t rank = (present_last_ + step) % count;
    if (rank == options_.self) continue;
    const Presence presence = presence_of(*traffic_.peers()[static_cast<std::size_t>(rank)]);
    if (presence == Presence::kUnknown) unknown.push_back(rank);
    if (presence != Presence::kPresent) continue;
    note_present(rank);
    return true;
  }
  return false;
}

// Returns whether a receive from any rank waits and no other rank has been present for a while.
bool PeerLiveness::have_all_left() {
  std::vector<std::int32_t> unknown;
  {
    const std::lock_guard lock(mutex_);
    const auto now = steady_now();
    const milliseconds pause = absent_since_ ? kAbsenceGrace : PeerConnections::kProbePause;
    if (traffic_.matching().receive_from_any() == nullptr || traffic_.peers().size() == 1 ||
        now - counted_at_ < pause) {
      return false;
    }
    counted_at_ = now;
    if (is_any_present(unknown)) return false;
  }
  const auto present = std::find_if(unknown.begin(), unknown.end(),
                                    [this](std::int32_t rank) { return is_listening(rank); });
  const std::lock_guard lock(mutex_);
  if (present != unknown.end()) {
    note_present(*present);
    return false;
  }
  if (!absent_since_) absent_since_ = steady_now();
  return steady_now() - *absent_since_ >= kAbsenceGrace;
}

// Fails receives from any rank, which wait for no rank in particular, once all others have left.
bool PeerLiveness::check_all_left() {
  if (!have_all_left()) return false;
  const std::lock_guard lock(mutex_);
  // Progress once more, because their last messages may have arrived just before they left.
  if (traffic_.is_broken() || traffic_.progress(true)) return true;
  const MessageRequest* const receive = traffic_.matching().receive_from_any();
  if (receive != nullptr) traffic_.report(all_left_failure(*receive, options_));
  return true;
}

bool PeerLiveness::find_failure() {
  std::int32_t missed = FailureDetector::kNoRank;
  MaybeFailure found = detector_.shared();
  if (!found) {
    {
      const std::lock_guard lock(mutex_);
      missed = next_awaited();
    }
    found = detector_.check(missed);
  }
  if (!found) found = find_unreachable(missed);
  if (!found) return check_all_left();
  // A rank that has learned of a death may have exited since, so the death comes first.
  if (const MaybeFailure known = detector_.shared()) found = known;
  const std::lock_guard lock(mutex_);
  if (traffic_.is_broken()) return true;
  Failure failure = *found;
  traffic_.name_message(failure);
  // Progress once more, because data that a rank sent before it exited is still there. If all of
  // that rank's messages have arrived, its exit is no failure; a death will be found again.
  traffic_.progress(true);
  const bool is_about_missed = missed >= 0 && failure.rank == options_.peer(missed).world_rank;
  if (is_about_missed && !is_awaited(*traffic_.peers()[static_cast<std::size_t>(missed)]))
    return true;
  traffic_.report(failure);
  return true;
}

}  // namespace ivy::comm
