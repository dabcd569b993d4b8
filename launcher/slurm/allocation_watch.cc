// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/allocation_watch.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <utility>

#include "launcher/slurm/slurm_command.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Pause between queries while the end is not known yet.
constexpr seconds kQueryInterval{60};

std::string date_text(std::int64_t at_ms) {
  const auto at = static_cast<std::time_t>(at_ms / 1000);
  std::tm local{};
  localtime_r(&at, &local);
  char text[32];
  return std::strftime(text, sizeof text, "%F %T", &local) > 0 ? text : "";
}

std::string seconds_text(std::int64_t ms) { return std::to_string(ms / 1000) + " s"; }

}  // namespace

AllocationWatch::AllocationWatch(boost::asio::io_context& loop, const SlurmAllocation& allocation,
                                 EndSettings settings, bool queries, bool prints)
    : loop_(loop),
      is_pod_(false),
      allocation_(allocation),
      settings_(settings),
      queries_(queries),
      prints_(prints),
      end_(settings),
      timer_(loop),
      retry_timer_(loop) {}

AllocationWatch::AllocationWatch(boost::asio::io_context& loop, EndSettings settings)
    : loop_(loop),
      is_pod_(true),
      allocation_(),
      settings_(settings),
      queries_(false),
      prints_(false),
      end_(settings),
      timer_(loop),
      retry_timer_(loop) {}

void AllocationWatch::start(AllocationEvents& events) {
  events_ = &events;
  if (allocation_.end_unix_s) return learned(*allocation_.end_unix_s * 1000);
  if (queries_) query();
}

void AllocationWatch::stop() {
  stopped_ = true;
  timer_.cancel();
  retry_timer_.cancel();
}

void AllocationWatch::query() {
  run_slurm_command(loop_, {"squeue", "-h", "-j", allocation_.job_id, "-o", "%L"}, kQueryDeadline,
                    [this](const Result<std::string>& output) {
                      if (!stopped_) answered(output);
                    });
}

void AllocationWatch::answered(const Result<std::string>& output) {
  Result<std::optional<seconds>> left = output.ok()
                                            ? parse_time_left(output.value())
                                            : Result<std::optional<seconds>>(output.error());
  if (output.ok() && output->empty())
    left = Error{Code::kNotFound, "squeue does not list " + allocation_.name()};
  if (left.ok())
    return learned(*left ? std::optional<std::int64_t>(wall_ms() + milliseconds(**left).count())
                         : std::nullopt);
  log::debug("the end of " + allocation_.name() + ": " + left.error().message);
  // The end that was known before remains valid.
  if (is_known_) {
    end_.query_failed(wall_ms());
    return schedule();
  }
  if (!settings_.stop_before) return;
  if (!std::exchange(has_warned_, true))
    events_->allocation_message(
        "warning: the end of " + allocation_.name() + " is unknown: " + left.error().message +
        "; --stop-before-end checks again every " + std::to_string(kQueryInterval.count()) + " s");
  retry_timer_.expires_after(kQueryInterval);
  retry_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) query();
  });
}

void AllocationWatch::learned(std::optional<std::int64_t> end_ms) {
  const std::int64_t now = wall_ms();
  const std::optional<std::int64_t> before = end_.end_ms();
  const bool is_too_soon = end_.learned(end_ms, now);
  const bool is_first = !std::exchange(is_known_, true);
  if (!end_ms) {
    if (is_first && settings_.stop_before)
      events_->allocation_message("note: " + allocation_.name() +
                                  " has no time limit: --stop-before-end is ignored");
  } else if (is_too_soon) {
    events_->allocation_message(
        "warning: " + allocation_.name() + " ends in " + seconds_text(*end_ms - now) +
        ", sooner than --stop-before-end " + seconds_text(settings_.stop_before->count()) +
        " allows: the ranks are notified when half of that time has passed");
  } else if (is_first && prints_) {
    events_->allocation_message(allocation_.name() + " ends at " + date_text(*end_ms) + ", in " +
                                seconds_text(*end_ms - now));
  } else if (before && *end_ms != *before) {
    log::debug(allocation_.name() + " ends at " + date_text(*end_ms) + " now");
  }
  schedule();
}

void AllocationWatch::schedule() {
  const std::optional<std::int64_t> next = end_.next_ms();
  if (stopped_ || !next) return;
  timer_.expires_after(milliseconds(std::max<std::int64_t>(0, *next - wall_ms())));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) step();
  });
}

void AllocationWatch::step() {
  switch (end_.due(wall_ms())) {
    case EndStep::kNothing:
      break;
    case EndStep::kQuery:
      // Steps that are due do not wait for the answer.
      if (queries_) query();
      break;
    case EndStep::kNotice:
      events_->allocation_notice(settings_.preempt_signal, false);
      break;
    case EndStep::kStop:
      events_->allocation_ends();
      break;
  }
  schedule();
}

void AllocationWatch::received(int signal, SignalSource source, bool ranks_have_it) {
  switch (end_.received(signal, source, wall_ms())) {
    case SignalMeaning::kInterrupt:
      return events_->allocation_interrupt(signal);
    case SignalMeaning::kPassOn:
      if (!ranks_have_it) events_->allocation_signal(signal);
      break;
    case SignalMeaning::kNotice:
      events_->allocation_notice(signal, ranks_have_it);
      break;
    case SignalMeaning::kKnown:
      log::debug(signal_name(signal) + " again: the ranks have it already");
      break;
    case SignalMeaning::kTimeIsUp:
      return events_->allocation_ends();
  }
  schedule();
}

void AllocationWatch::pod_terminates() {
  const bool is_first = !end_.end_ms();
  if (is_first) end_.ends_after_notice(wall_ms());
  received(is_first ? settings_.preempt_signal : SIGTERM, SignalSource::kLauncher);
}

milliseconds AllocationWatch::grace(milliseconds usual) const {
  return end_.grace(usual, wall_ms());
}

bool AllocationWatch::is_last_call() const { return end_.is_last_call(wall_ms()); }

Awaitable<Result<void>> AllocationWatch::may_requeue(Sequence& sequence) {
  if (is_last_call()) co_return Result<void>();
  // scancel sends TERM, as an early notice does; a cancelled job must stay cancelled.
  std::vector<std::string> squeue{"squeue", "-h", "-j", allocation_.job_id, "-o", "%T"};
  const Result<std::string> state =
      co_await slurm_answer(sequence, std::move(squeue), kQueryDeadline);
  // The other states include SIGNALING, which is a running job's.
  const bool is_ending =
      state.ok() && (state->empty() || *state == "COMPLETING" || *state == "CANCELLED");
  if (!is_ending) co_return Result<void>();
  co_return Error{Code::kFailedPrecondition,
                  allocation_.name() + " is " + (state->empty() ? "gone" : *state)};
}

Awaitable<Result<void>> AllocationWatch::requeue(Sequence& sequence) {
  std::vector<std::string> scontrol{"scontrol", "requeue", allocation_.job_id};
  const Result<std::string> answer =
      co_await slurm_answer(sequence, std::move(scontrol), kRequeueDeadline);
  co_return answer.ok() ? Result<void>() : Result<void>(answer.error());
}

}  // namespace ivy
