// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/allocation_end.h"

#include <algorithm>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks that were notified are stopped when a quarter of their time is left, but at most this long
// before the end.
constexpr milliseconds kMaxStopTime{15'000};
// While nothing is due, the end is queried again after half of the remaining time, but not more
// often than this, because the controller has other jobs.
constexpr milliseconds kQueryPause{60'000};
// All hosts receive one signal within this time.
constexpr milliseconds kSameStep{3'000};

}  // namespace

Result<std::optional<seconds>> parse_time_left(std::string_view text) {
  if (text == "UNLIMITED") return std::optional<seconds>{};
  const std::optional<double> left = clock_seconds(text);
  if (!left) return Error{Code::kInvalidArgument, "\"" + std::string(text) + "\" is not a time"};
  return std::optional(seconds(static_cast<std::int64_t>(*left)));
}

bool AllocationEnd::learned(std::optional<std::int64_t> end_ms, std::int64_t now_ms) {
  end_ms_ = end_ms;
  query_at_ms_.reset();
  if (!end_ms) return false;
  const std::int64_t left_ms = std::max<std::int64_t>(0, *end_ms - now_ms);
  const bool is_first = !std::exchange(was_learned_, true);
  // Only at first; later, the ranks have had their time.
  const bool is_too_soon =
      is_first && stop_before_ > milliseconds(0) && stop_before_.count() >= left_ms;
  if (is_too_soon) stop_before_ = milliseconds(left_ms / 2);
  plan_query(now_ms);
  return is_too_soon;
}

void AllocationEnd::ends_after_notice(std::int64_t now_ms) {
  end_ms_ = now_ms + stop_before_.count();
  is_killed_at_end_ = true;
}

void AllocationEnd::plan_query(std::int64_t now_ms) {
  // The ranks are about to exit, so nothing more is planned.
  if (!end_ms_ || notice_) return;
  const std::int64_t due_ms = notice_at_ms().value_or(*end_ms_ - kLastCall.count());
  if (due_ms - now_ms <= 2 * kQueryAhead.count()) return;
  const std::int64_t half_ms = std::max<std::int64_t>(kQueryPause.count(), (due_ms - now_ms) / 2);
  query_at_ms_ = std::min(now_ms + half_ms, due_ms - kQueryAhead.count());
}

std::optional<std::int64_t> AllocationEnd::notice_at_ms() const {
  if (!end_ms_ || !settings_.stop_before || notice_) return {};
  return *end_ms_ - stop_before_.count();
}

std::int64_t AllocationEnd::stop_at_ms() const {
  return *end_ms_ - std::min(stop_before_ / 4, kMaxStopTime).count();
}

EndStep AllocationEnd::due(std::int64_t now_ms) {
  if (query_at_ms_ && *query_at_ms_ <= now_ms) {
    query_at_ms_.reset();
    return EndStep::kQuery;
  }
  const std::optional<std::int64_t> notice_ms = notice_at_ms();
  if (notice_ms && *notice_ms <= now_ms) {
    const SignalMeaning meaning = received(settings_.preempt_signal, SignalSource::kTimer, now_ms);
    notice_ = delivery_of(settings_.preempt_signal).is_notice = true;
    if (meaning != SignalMeaning::kKnown) return EndStep::kNotice;
  }
  if (notice_ && settings_.stop_before && end_ms_ && !stopped_ && stop_at_ms() <= now_ms) {
    stopped_ = true;
    return EndStep::kStop;
  }
  return EndStep::kNothing;
}

std::optional<std::int64_t> AllocationEnd::next_ms() const {
  std::optional<std::int64_t> next = query_at_ms_;
  const auto consider = [&next](std::int64_t at_ms) {
    next = next ? std::min(*next, at_ms) : at_ms;
  };
  if (const std::optional<std::int64_t> notice_ms = notice_at_ms()) consider(*notice_ms);
  if (notice_ && settings_.stop_before && end_ms_ && !stopped_) consider(stop_at_ms());
  return next;
}

// Slurm kills at the latest KillWait (30 s) after the end. An allocation that still exists then was
// extended (scontrol update TimeLimit, OverTimeLimit).
bool AllocationEnd::was_extended(std::int64_t now_ms) const {
  return end_ms_ && now_ms > *end_ms_ + kSlurmIsLate.count();
}

bool AllocationEnd::is_last_call(std::int64_t now_ms) const {
  return end_ms_ && now_ms >= *end_ms_ - kLastCall.count() && !was_extended(now_ms);
}

// Returns true if it is late enough for the signals that Slurm sends because of the end.
bool AllocationEnd::is_near_end(std::int64_t now_ms) const {
  return settings_.stop_before && end_ms_ && !was_extended(now_ms) &&
         now_ms >= *end_ms_ - (stop_before_ + kSlurmIsEarly + kLastCall).count();
}

AllocationEnd::Delivery& AllocationEnd::delivery_of(int signal) {
  for (Delivery& delivery : deliveries_)
    if (delivery.signal == signal) return delivery;
  Delivery& added = deliveries_.emplace_back();
  added.signal = signal;
  return added;
}

// Returns true if another source, or another host of the step, has sent the same signal. Otherwise
// starts a new delivery.
bool AllocationEnd::is_repetition(Delivery& delivery, SignalSource source, std::int64_t now_ms) {
  // Slurm may be this early, and checks its timers twice a minute.
  constexpr std::int64_t kWindowMs = kSlurmIsEarly.count() * 3 / 2;
  std::optional<std::int64_t>& received_ms = delivery.received_ms[static_cast<std::size_t>(source)];
  if (received_ms && source == SignalSource::kStep && now_ms - *received_ms <= kSameStep.count())
    return true;
  const auto has_come = [](const std::optional<std::int64_t>& at_ms) { return at_ms.has_value(); };
  const bool has_begun =
      std::any_of(delivery.received_ms.begin(), delivery.received_ms.end(), has_come);
  // Slurm's own notice may differ from ours by as much as --signal and --stop-before-end do.
  const bool may_repeat = delivery.is_notice || now_ms - delivery.began_ms <= kWindowMs;
  if (has_begun && !received_ms && may_repeat) {
    received_ms = now_ms;
    return true;
  }
  delivery.began_ms = now_ms;
  delivery.is_notice = false;
  delivery.received_ms.fill(std::nullopt);
  received_ms = now_ms;
  return false;
}

SignalMeaning AllocationEnd::received(int signal, SignalSource source, std::int64_t now_ms) {
  const bool is_slurms_term = signal == SIGTERM && source != SignalSource::kTimer;
  if (is_slurms_term && is_last_call(now_ms)) return SignalMeaning::kTimeIsUp;
  Delivery& delivery = delivery_of(signal);
  // scancel sends a signal to both ivyrun and the step; two signals from the same source are two
  // requests.
  if (is_repetition(delivery, source, now_ms)) return SignalMeaning::kKnown;
  if (is_slurms_term) {
    if (!is_near_end(now_ms)) return SignalMeaning::kInterrupt;
    if (notice_) return SignalMeaning::kTimeIsUp;
  }
  if (signal != settings_.preempt_signal)
    return signal == SIGTERM ? SignalMeaning::kInterrupt : SignalMeaning::kPassOn;
  notice_ = delivery.is_notice = true;
  return SignalMeaning::kNotice;
}

milliseconds AllocationEnd::grace(milliseconds usual, std::int64_t now_ms) const {
  if (!end_ms_ || was_extended(now_ms)) return usual;
  // The end has come and we are still running: Slurm has sent TERM, and KILL follows.
  if (is_last_call(now_ms) && !is_killed_at_end_) return std::min(usual, kUntilSlurmKills);
  // Reserves a third of the remaining time, at most 5 s, for the steps after KILL: proof, output,
  // summary.
  const milliseconds left(std::max<std::int64_t>(0, *end_ms_ - now_ms));
  return std::min(usual, left - std::min(left / 3, kLastCall));
}

}  // namespace ivy
