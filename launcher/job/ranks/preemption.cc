// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/preemption.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <optional>
#include <utility>

#include "launcher/slurm/allocation_watch.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {

std::string Preemption::name() const { return job_.request.allocation_end->name(); }

void Preemption::step_signalled(int signal, bool ranks_have_it) {
  if (job_.request.allocation_end != nullptr)
    job_.request.allocation_end->received(signal, SignalSource::kStep, ranks_have_it);
}

bool Preemption::is_last_call() const {
  return job_.request.allocation_end != nullptr && job_.request.allocation_end->is_last_call();
}

void Preemption::give_notice(int signal, bool by_scheduler) {
  const JobState state = job_.phase.state();
  job_.reports.notice("", name(), "", std::nullopt, /*withdrawn=*/false);
  // No rank runs between two attempts or before the first one.
  if (is_before_start(state) || state == JobState::kRestarting) return end_with_allocation();
  if (state != JobState::kRunning) return;
  const bool was_warned = has_notice() && !is_withdrawn_;
  ends_with_allocation_ = true;
  group_continues_ = is_withdrawn_ = false;
  if (was_warned) {
    job_.screen.note(name() + " is about to end; the ranks have been warned already");
    return;
  }
  notice_signal_ = signal;
  job_.screen.note(signal_name(signal) + " to " + std::to_string(job_.workers.running()) +
                   " ranks: " + name() + " is about to end");
  if (!by_scheduler) job_.signal_workers(signal);
}

void Preemption::warn_ranks(const std::string& what, const std::string& next) {
  what_ = what;
  if (has_notice() && !std::exchange(is_withdrawn_, false)) return;
  notice_signal_ = job_.options.preempt_signal.value_or(SIGTERM);
  job_.print(signal_name(notice_signal_) + " to " + counted(job_.workers.running(), "rank") + "; " +
             next);
  job_.signal_workers(notice_signal_);
}

void Preemption::withdraw() {
  if (!ends_with_allocation_) is_withdrawn_ = true;
  group_continues_ = false;
}

void Preemption::end_wave() {
  group_continues_ = is_withdrawn_ = false;
  what_.clear();
  if (!ends_with_allocation_) notice_signal_ = 0;
}

bool Preemption::explains(WorkerRecord& worker) {
  if (job_.request.allocation_end == nullptr && !has_notice()) return false;
  WorkerEnd& end = worker.end;
  const auto is_of = [&end](int signal) {
    return end.status.signal == signal || end.status.code == 128 + signal;
  };
  // Another attempt follows. A rank may fail because a rank of another host was faster to exit, and
  // its exit may arrive here first.
  if (has_notice() && group_continues_) {
    end.after_stop |= worker.has_failed();
    return true;
  }
  // Slurm's TERM may reach a rank before it reaches this process.
  const bool is_last = is_of(SIGTERM) && is_last_call();
  const bool is_answer = is_of(notice_signal_) || end.status.code == kExitPreempted;
  if ((has_notice() && is_answer) || is_last) {
    end.after_stop = true;
    preempted(end.at_ns);
  }
  if (is_last) boost::asio::post(job_.loop, [this] { end_with_allocation(); });
  const bool all_ok =
      std::all_of(job_.workers.begin(), job_.workers.end(), [](const WorkerRecord& each) {
        return each.ended &&
               (each.end.status.is_success() || each.end.after_stop || each.end.tolerated);
      });
  if (has_notice() && !is_withdrawn_ && all_ok) preempted(end.at_ns);
  return job_.launcher_end.reason == LauncherReason::kPreempted;
}

LauncherEnd Preemption::end_of(const std::string& what) const {
  return {LauncherReason::kPreempted, has_notice() ? notice_signal_ : SIGTERM,
          Diagnostic{.severity = Severity::kNote,
                     .id = "IVY-R040",
                     .what = "stopped because " + what,
                     .exit_code = kExitPreempted},
          monotonic_ns()};
}

void Preemption::end_job(const std::string& what) {
  LauncherEnd end = end_of(what);
  job_.end_because(end.reason, std::move(end.diagnostic), end.signal);
}

void Preemption::preempted(std::int64_t at_ns) {
  if (!what_.empty() && !ends_with_allocation_) {
    const bool is_first = !job_.has_reason();
    end_job(what_);
    if (is_first) job_.launcher_end.at_ns = at_ns;
    return;
  }
  if (job_.end_because(LauncherReason::kPreempted,
                       Diagnostic{.severity = Severity::kNote,
                                  .id = "IVY-R011",
                                  .what = "stopped before the end of " + name(),
                                  .exit_code = kExitPreempted},
                       has_notice() ? notice_signal_ : SIGTERM))
    job_.launcher_end.at_ns = at_ns;
}

void Preemption::end_with_allocation() {
  preempted(monotonic_ns());
  const JobState before = job_.phase.state();
  // The job is being stopped already, and an interrupt would kill its workers.
  if (before == JobState::kStopping || before == JobState::kKilling || before == JobState::kDone)
    return;
  job_.phase.apply(JobEvent::kInterrupted);
  if (job_.phase.state() != JobState::kStopping) return;
  const auto grace_s =
      std::chrono::duration_cast<std::chrono::seconds>(job_.grace(kGraceByRequest));
  job_.screen.note(
      name() + " ends: " + job_.stopping_text() +
      (job_.was_started() ? ", KILL follows in " + std::to_string(grace_s.count()) + " s" : ""));
}

Awaitable<void> Preemption::requeue_if_due(Sequence& sequence, const Outcome& outcome) {
  const bool is_due = job_.options.requeue &&
                      job_.launcher_end.reason == LauncherReason::kPreempted &&
                      !outcome.origin_is_worker && job_.request.allocation_end != nullptr;
  if (!is_due) co_return;
  AllocationWatch& allocation = *job_.request.allocation_end;
  const Result<void> allowed = co_await allocation.may_requeue(sequence);
  if (!allowed.ok()) {
    job_.print("note: not requeued: " + allowed.error().message);
    co_return;
  }
  // Printed before the request: once Slurm has agreed, it ends this allocation with this process.
  job_.print(name() + " is being requeued");
  const Result<void> requeued = co_await allocation.requeue(sequence);
  if (!requeued.ok())
    job_.screen.print(render(Diagnostic{
        .id = "IVY-R012",
        .what = name() + " could not be requeued",
        .cause = requeued.error().message,
        .fix = "sbatch --requeue allows it (a site may forbid it: JobRequeue=0)\n"
               "or submit the script again: exit code 75 means that it has not finished"}));
}

}  // namespace ivy
