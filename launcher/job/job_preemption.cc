// A Slurm allocation that ends under a job: class Job's part of it.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <memory>

#include "launcher/job/job.h"
#include "launcher/slurm/allocation_watch.h"
#include "proto/os/clock.h"

namespace ivy {

void Job::give_notice(int signal, bool by_slurm) {
  // Between two attempts, or before the first one: no rank runs that could be told.
  if (state_ == JobState::kConnecting || state_ == JobState::kChecking ||
      state_ == JobState::kRestarting)
    return end_with_allocation();
  if (state_ != JobState::kRunning) return;
  notice_signal_ = signal;
  if (!options_.quiet)
    output_->say("ivyrun: " + signal_name(signal) + " to " + std::to_string(workers_running_) +
                 " ranks: " + request_.allocation_end->allocation().name() + " is about to end\n");
  if (!by_slurm) forward_signal(signal);
}

// Marks a worker that the notice or the allocation's end has ended as a victim. True if the job
// ends with its allocation: no worker is stopped for this end then, and those that still write
// their state have time until the last call.
bool Job::ended_by_notice(WorkerRecord& worker) {
  if (request_.allocation_end == nullptr) return false;
  WorkerEnd& end = worker.end;
  const auto is_of = [&end](int signal) {
    return end.status.signal == signal || end.status.code == 128 + signal;
  };
  // Slurm's TERM may reach a rank before it reaches ivyrun.
  const bool is_last_call = is_of(SIGTERM) && request_.allocation_end->is_last_call();
  if ((notice_signal_ != 0 && is_of(notice_signal_)) || is_last_call) {
    end.after_stop = true;
    say_preempted(end.at_ns);
  }
  if (is_last_call) boost::asio::post(loop_, [this] { end_with_allocation(); });
  const bool all_well = std::all_of(workers_.begin(), workers_.end(), [](const WorkerRecord& each) {
    return each.ended && (each.end.status.success() || each.end.after_stop);
  });
  if (notice_signal_ != 0 && all_well) say_preempted(end.at_ns);
  return launcher_end_.reason == LauncherReason::kPreempted;
}

void Job::say_preempted(std::int64_t at_ns) {
  const bool is_first = launcher_end_.reason == LauncherReason::kNone;
  const std::string name = request_.allocation_end->allocation().name();
  end_by_launcher(LauncherReason::kPreempted, notice_signal_ != 0 ? notice_signal_ : SIGTERM,
                  Diagnostic{.severity = Severity::kNote,
                             .id = "IVY-R011",
                             .what = "stopped before the end of " + name,
                             .exit_code = kExitPreempted});
  if (is_first) launcher_end_.at_ns = at_ns;
}

void Job::end_with_allocation() {
  say_preempted(monotonic_ns());
  // Whatever ends it already goes on; a second interrupt would kill.
  if (state_ == JobState::kStopping || state_ == JobState::kKilling || state_ == JobState::kDone)
    return;
  apply(JobEvent::kInterrupted);
  if (state_ != JobState::kStopping || options_.quiet) return;
  const auto grace_s = std::chrono::duration_cast<std::chrono::seconds>(grace(kGraceByRequest));
  output_->say(
      "ivyrun: " + request_.allocation_end->allocation().name() + " ends: " + stopping_text() +
      (started_at_ns_ == 0 ? "\n"
                           : ", KILL follows in " + std::to_string(grace_s.count()) + " s\n"));
}

void Job::conclude() {
  if (concluded_) return;
  concluded_ = true;
  finish_timer_.cancel();
  await_reader();
  output_->finish([this] {
    summary_follows_ = false;
    reader_timer_.cancel();
    const Outcome outcome = say_summary();
    requeue_if_due(outcome, [this, outcome] {
      output_->finish([this, outcome] {
        tell_end(outcome, [this, outcome] { over_(outcome.exit_code, outcome.raise_signal); });
      });
    });
  });
  summary_follows_ = true;
}

void Job::requeue_if_due(const Outcome& outcome, std::function<void()> then) {
  const bool is_due = options_.requeue && launcher_end_.reason == LauncherReason::kPreempted &&
                      !outcome.origin_is_worker && request_.allocation_end != nullptr;
  if (!is_due) return then();
  const std::string name = request_.allocation_end->allocation().name();
  // Before it is done: Slurm ends this allocation, and us, as soon as it has agreed.
  const auto asked = std::make_shared<bool>(false);
  const auto begins = [this, name, asked] {
    *asked = true;
    output_->say("ivyrun: " + name + " is put back into the queue\n");
  };
  request_.allocation_end->requeue(begins, [this, name, asked, then](const Result<void>& requeued) {
    if (!requeued.ok() && *asked) {
      Diagnostic diagnostic;
      diagnostic.id = "IVY-R012";
      diagnostic.what = name + " could not be put back into the queue";
      diagnostic.cause = requeued.error().message;
      diagnostic.fix =
          "sbatch --requeue allows it (a site may forbid it: JobRequeue=0)\n"
          "or submit the script again: exit code 75 says that it has more to do";
      output_->say(render(diagnostic));
    } else if (!requeued.ok()) {
      output_->say("ivyrun: note: not put back into the queue: " + requeued.error().message + "\n");
    }
    then();
  });
}

}  // namespace ivy
