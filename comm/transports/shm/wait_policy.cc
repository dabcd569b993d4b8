// SPDX-License-Identifier: Apache-2.0
// may_continue() is called throughout every wait for a member. If it returns false, the
// communicator is broken, by a known failure (break_with()) or by the deadline (give_up()). The
// functions below it find the member to blame and compose the text.
#include "comm/transports/shm/wait_policy.h"

#include <poll.h>

#include <algorithm>

#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/liveness/process_state.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Shorter waits do not report to the watch.
constexpr milliseconds kWatchedAfter{100};
constexpr std::size_t kNamedMax = 8;

// Returns whether the process is stopped, by a signal or a debugger. Returns false if its state is
// unknown.
bool is_stopped(std::int32_t pid) {
  const std::optional<char> state = process_state(pid);
  return state == 'T' || state == 't';
}

}  // namespace

bool WaitPolicy::may_continue(std::uint32_t member) {
  if (segment_.header().failure_state.load(std::memory_order_acquire) != 0) return false;
  if (detector_ != nullptr) {
    const MaybeFailure found = detector_->check(rank_of(member));
    if (found && !is_left_to(member, *found)) {
      break_with(*found);
      return false;
    }
  }
  if (deadline_->left() <= nanoseconds::zero()) {
    give_up(member);
    return false;
  }
  if (watch_ != nullptr && deadline_->waited() >= kWatchedAfter) watch_->waits(long_wait(member));
  return true;
}

// Returns whether a death is left to that member to report: a rank may die as soon as its own part
// is done, while others still receive its data.
bool WaitPolicy::is_left_to(std::uint32_t member, const Failure& found) {
  if (found.kind != FailureKind::kRankDied && found.kind != FailureKind::kHostLost) return false;
  if (found.rank == options_.members[member].world_rank) return false;
  if (segment_.member(member).operation.load(std::memory_order_relaxed) < sequence_) return false;
  const auto now = steady_now();
  if (!death_seen_at_) death_seen_at_ = now;
  return now - *death_seen_at_ < FailureDetector::kVerdictTime;
}

void WaitPolicy::break_with(const Failure& found) {
  Failure failure = found;
  add_operation(failure);
  failure_.break_with(failure);
}

void WaitPolicy::report_unreachable(std::uint32_t member, const std::string& why) {
  deadline_->start();
  // If a peer's memory is inaccessible, its death will be reported soon.
  for (milliseconds waited{0}; waited < FailureDetector::kVerdictTime;
       waited += FailureDetector::kVerdictStep) {
    const MaybeFailure found =
        detector_ != nullptr ? detector_->check(rank_of(member)) : std::nullopt;
    if (found) return break_with(*found);
    if (!may_continue(member)) return;
    poll(nullptr, 0, static_cast<int>(FailureDetector::kVerdictStep.count()));
  }
  Failure failure = make_failure(FailureKind::kTransport,
                                 "memory of rank " + std::to_string(rank_of(member)) + " on " +
                                     options_.host + " cannot be reached: " + why);
  add_operation(failure);
  blame(failure, member);
  failure_.break_with(failure);
}

void WaitPolicy::report_mismatch(std::uint32_t member, const Fingerprint& peer_call,
                                 const Fingerprint& own_call) {
  const OperationShape own = shape_of(own_call);
  const OperationShape other = shape_of(peer_call);
  Failure failure = make_failure(
      FailureKind::kMismatch,
      "operation " + std::to_string(sequence_) + " of communicator " + options_.communicator +
          " differs between ranks: rank " + std::to_string(rank_of(options_.self)) + " calls " +
          describe_against(own, other) + ", rank " + std::to_string(rank_of(member)) + " calls " +
          describe_against(other, own));
  blame(failure, member);
  failure_.break_with(failure);
}

void WaitPolicy::blame(Failure& failure, std::uint32_t member) const {
  failure.rank = options_.members[member].world_rank;
  failure.pid = options_.members[member].pid;
  failure.sequence = sequence_;
  set_host(failure, options_.host);
  set_operation(failure, comm_status::name_of(shape_.operation));
}

// Adds this operation to a failure that does not name one.
void WaitPolicy::add_operation(Failure& failure) const {
  if (failure.sequence == 0) {
    set_text(failure, std::string(failure.text) + " during " + describe(shape_) + ", operation " +
                          std::to_string(sequence_) + " of communicator " + options_.communicator);
  }
  failure.sequence = sequence_;
  set_operation(failure, comm_status::name_of(shape_.operation));
}

std::string WaitPolicy::name_of(std::uint32_t member) const {
  return name_of_rank(rank_of(member), options_.host, options_.members[member].pid);
}

// Returns the members that have not entered this operation of the communicator.
std::vector<std::uint32_t> WaitPolicy::absent_members() const {
  std::vector<std::uint32_t> absent;
  for (std::uint32_t member = 0; member < options_.size(); ++member) {
    const MemberBlock& block = segment_.member(member);
    if (member != options_.self && block.operation.load(std::memory_order_relaxed) < sequence_) {
      absent.push_back(member);
    }
  }
  return absent;
}

// Returns the absent member that has entered the fewest operations, because the others may wait for
// it.
std::uint32_t WaitPolicy::slowest_member(const std::vector<std::uint32_t>& absent) const {
  return *std::min_element(
      absent.begin(), absent.end(), [&](std::uint32_t one, std::uint32_t other) {
        return segment_.member(one).operation.load(std::memory_order_relaxed) <
               segment_.member(other).operation.load(std::memory_order_relaxed);
      });
}

// Returns a member whose process is stopped; an absent one, if members are absent.
std::optional<std::uint32_t> WaitPolicy::stopped_member(
    const std::vector<std::uint32_t>& absent) const {
  for (std::uint32_t member = 0; member < options_.size(); ++member) {
    const bool is_suspect = absent.empty()
                                ? member != options_.self
                                : std::find(absent.begin(), absent.end(), member) != absent.end();
    if (is_suspect && is_stopped(options_.members[member].pid)) return member;
  }
  return std::nullopt;
}

// Returns, for example, " did not enter it; the last that it entered is operation 6, barrier; ranks
// 2, 3 are missing".
std::string WaitPolicy::absence_text(std::uint32_t culprit,
                                     const std::vector<std::uint32_t>& absent) const {
  std::string text = " did not enter it";
  const std::uint64_t last = segment_.member(culprit).operation.load(std::memory_order_relaxed);
  if (last > 0) text += "; the last that it entered is operation " + std::to_string(last);
  if (last > 0 && last + 1 == sequence_) text += ", " + describe(previous_shape_);
  if (absent.size() == 1) return text;
  std::vector<std::string> ranks;
  for (std::size_t i = 0; i < absent.size() && i < kNamedMax; ++i) {
    ranks.push_back(std::to_string(rank_of(absent[i])));
  }
  if (absent.size() > kNamedMax) ranks.emplace_back("...");
  return text + "; ranks " + joined(ranks, ", ") + " are missing";
}

// Determines the member to blame, as far as this host can see: preferably a stopped process, then
// one that has not entered this operation. Members that have entered it are waiting, too.
LongWait WaitPolicy::long_wait(std::uint32_t member) const {
  LongWait wait;
  wait.sequence = sequence_;
  wait.waited = deadline_->waited();
  wait.waits_for = rank_of(member);
  const std::vector<std::uint32_t> absent = absent_members();
  const std::optional<std::uint32_t> stopped = stopped_member(absent);
  if (!stopped && absent.empty()) return wait;
  const std::uint32_t culprit = stopped ? *stopped : slowest_member(absent);
  wait.culprit = rank_of(culprit);
  wait.is_absent = !stopped;
  wait.because = name_of(culprit) + (stopped ? " is stopped" : "");
  if (absent.empty()) return wait;
  wait.because += (stopped ? " and" : "") + absence_text(culprit, absent);
  return wait;
}

// Handles the timeout: breaks the communicator and names the rank that caused it.
void WaitPolicy::give_up(std::uint32_t member) {
  const LongWait wait = long_wait(member);
  std::optional<Suspicion> suspicion;
  if (watch_ != nullptr) suspicion = watch_->timed_out(wait);
  if (suspicion && suspicion->rank != wait.culprit) {
    Failure failure = timeout_failure(suspicion->because);
    // The blamed rank need not be on this host; the communicator adds its host and pid.
    failure.rank = watch_->world_rank(suspicion->rank);
    failure_.break_with(failure);
    return;
  }
  std::uint32_t blamed = member;
  for (std::uint32_t other = 0; other < options_.size(); ++other) {
    if (wait.culprit >= 0 && rank_of(other) == wait.culprit) blamed = other;
  }
  Failure failure =
      timeout_failure(wait.because.empty() ? "every rank of this host has entered it, but " +
                                                 name_of(member) + " makes no progress"
                                           : wait.because);
  blame(failure, blamed);
  failure_.break_with(failure);
}

// Returns the failure for a timeout of this operation, without a rank to blame.
Failure WaitPolicy::timeout_failure(const std::string& because) const {
  Failure failure = make_failure(FailureKind::kTimeout,
                                 describe(shape_) + ", operation " + std::to_string(sequence_) +
                                     " of communicator " + options_.communicator + " on " +
                                     options_.host + ": timed out: no progress for " +
                                     tenths_text(deadline_->waited().count()) + "; " + because);
  failure.sequence = sequence_;
  set_operation(failure, comm_status::name_of(shape_.operation));
  return failure;
}

}  // namespace ivy::comm
