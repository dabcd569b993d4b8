// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/rank_losses.h"

#include <algorithm>
#include <cstdio>

#include "launcher/options/option_values.h"
#include "launcher/report/folded_ranks.h"
#include "launcher/screen/summary.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

FailureLimits limits_of(const JobRequest& request) {
  const Options& options = request.options;
  FailureLimits limits;
  limits.on_failure = options.on_failure;
  limits.min_workers = options.min_workers;
  limits.max_replacements = options.max_replacements;
  // For tests: may only make the first pause shorter.
  if (const std::string* pause = find_variable(request.caller, "IVY_TEST_RESTART_PAUSE")) {
    const Result<milliseconds> shorter = parse_duration(*pause);
    if (shorter.ok()) limits.first_pause = std::min(limits.first_pause, shorter.value());
  }
  return limits;
}

milliseconds age_of(const WorkerRecord& worker, std::int64_t job_started_at_ns,
                    std::int64_t now_ns) {
  const std::int64_t since_ns =
      worker.started_at_ns != 0 ? worker.started_at_ns : job_started_at_ns;
  return milliseconds((now_ns - since_ns) / 1'000'000);
}

}  // namespace

RankLosses::RankLosses(JobContext& job) : job_(job), policy_(limits_of(job.request)) {}

void RankLosses::begin() {
  policy_.begin_generation();
  lines_.clear();
  replaced_ = 0;
}

FailureFacts RankLosses::facts_of(const WorkerRecord& worker, bool is_preempted) const {
  FailureFacts facts;
  facts.job_runs = job_.phase.state() == JobState::kRunning && !job_.has_reason();
  facts.could_not_start = !worker.end.exec_failure.empty();
  facts.is_preempted = is_preempted;
  facts.run_time = age_of(worker, job_.started_at_ns, worker.end.at_ns);
  const std::int64_t now_ns = monotonic_ns();
  for (const WorkerRecord& other : job_.workers) {
    if (&other == &worker) continue;
    if (other.ended) {
      facts.done += other.has_failed() ? 0 : 1;
      continue;
    }
    ++facts.live;
    // A rank that is still being started again has none of the group's state.
    const bool has_started = other.rejoins == 0 || other.end.pid != 0;
    const milliseconds age = age_of(other, job_.started_at_ns, now_ns);
    if (has_started && policy_.is_survivor(other.rejoins, age)) ++facts.survivors;
  }
  return facts;
}

std::string RankLosses::cause(const WorkerRecord& worker) const {
  return attempt_cause(worker.end,
                       worker.started_at_ns != 0 ? worker.started_at_ns : job_.started_at_ns);
}

bool RankLosses::continues_after(WorkerRecord& worker, bool is_preempted) {
  if (!is_on()) return false;
  const FailureDecision decision = policy_.decide(facts_of(worker, is_preempted));
  switch (decision.action) {
    case FailureAction::kContinue:
      lose(worker);
      return true;
    case FailureAction::kReplace:
      replace(worker, decision.pause);
      return true;
    case FailureAction::kEndJob:
      if (!decision.why_not.empty())
        job_.print("rank " + std::to_string(worker.end.rank) +
                   " failed, and the job stops: " + decision.why_not);
      abandon(worker);
      return false;
  }
  return false;
}

void RankLosses::lose(WorkerRecord& worker) {
  job_.faults.named(*named_failure(&worker.end, {}), monotonic_ns());
  worker.end.tolerated = true;
  lines_.push_back("lost: " + cause(worker));
  const std::size_t left = job_.workers.running();
  job_.print("lost " + cause(worker) + "; the other " + counted(left, "worker") +
             (left == 1 ? " continues" : " continue") + " (--on-failure shrink)");
  abandon(worker);
}

void RankLosses::abandon(const WorkerRecord& worker) {
  // Otherwise its host would wait for a replacement, and never report.
  if (job_.options.on_failure != OnFailure::kReplace) return;
  Command command;
  ReplaceWorker& order = *command.mutable_replace_worker();
  order.set_generation(job_.generation);
  order.set_rank(static_cast<std::uint32_t>(worker.end.rank));
  order.set_abandon(true);
  job_.hosts.send(worker.host, command);
}

void RankLosses::replace(WorkerRecord& worker, milliseconds pause) {
  job_.faults.named(*named_failure(&worker.end, {}), monotonic_ns());
  lines_.push_back("replaced: " + cause(worker));
  ++replaced_;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, " in %.3g s", static_cast<double>(pause.count()) / 1e3);
  job_.print("lost " + cause(worker) + "; restarting only this rank" +
             (pause.count() > 0 ? seconds : "") + ", " +
             counted(job_.workers.running(), "other worker") +
             (job_.workers.running() == 1 ? " continues" : " continue") +
             " (--on-failure replace, " + std::to_string(policy_.replacements()) + " of " +
             std::to_string(policy_.limits().max_replacements) + ")");
  job_.workers.starts_again(worker);
  Command command;
  ReplaceWorker& order = *command.mutable_replace_worker();
  order.set_generation(job_.generation);
  order.set_rank(static_cast<std::uint32_t>(worker.end.rank));
  order.set_rejoins(static_cast<std::uint32_t>(worker.rejoins));
  order.set_pause_ms(static_cast<std::uint32_t>(pause.count()));
  job_.hosts.send(worker.host, command);
}

bool RankLosses::continues_without(std::size_t host, const std::vector<std::uint32_t>& ranks,
                                   const LauncherEnd& end) {
  // Ranks of a lost host cannot be started again on another one.
  if (job_.options.on_failure != OnFailure::kShrink) return false;
  FailureFacts facts;
  facts.job_runs = true;
  for (const WorkerRecord& other : job_.workers) {
    if (other.ended && !other.has_failed()) ++facts.done;
    if (!other.ended && other.host != host) ++facts.live;
  }
  const FailureDecision decision = policy_.decide(facts);
  const std::string what =
      end.diagnostic.what + (ranks.empty() ? "" : ", with " + named_ranks(ranks));
  if (decision.action != FailureAction::kContinue) {
    job_.print(what + ", and the job stops: " + decision.why_not);
    return false;
  }
  for (const std::uint32_t rank : ranks) {
    WorkerRecord& worker = job_.workers[rank];
    job_.workers.lost_with_host(worker, end.at_ns);
    notify_store(worker);
  }
  lines_.push_back("lost: " + what);
  job_.print(what + "; the other " + counted(job_.workers.running(), "worker") +
             (job_.workers.running() == 1 ? " continues" : " continue") + " (--on-failure shrink)");
  return true;
}

bool RankLosses::can_replace(std::size_t host) const {
  if (job_.options.on_failure != OnFailure::kReplace) return false;
  const std::int64_t now_ns = monotonic_ns();
  return std::any_of(job_.workers.begin(), job_.workers.end(), [&](const WorkerRecord& other) {
    const bool runs = !other.ended && (other.rejoins == 0 || other.end.pid != 0);
    return runs && other.host != host &&
           policy_.is_survivor(other.rejoins, age_of(other, job_.started_at_ns, now_ns));
  });
}

void RankLosses::replace_host(const std::vector<std::uint32_t>& ranks, std::size_t spare,
                              const LauncherEnd& end) {
  const std::string& name = job_.hosts[spare].name();
  for (const std::uint32_t rank : ranks) {
    WorkerRecord& worker = job_.workers[rank];
    notify_store(worker);
    job_.workers.moves(worker, spare, name);
    ++replaced_;
    lines_.push_back("replaced: rank " + std::to_string(rank) + " on " + name + ", because " +
                     end.diagnostic.what);
  }
}

void RankLosses::notify_store(const WorkerRecord& worker) {
  const std::size_t store_host = job_.plan.hosts.front().host_index;
  // The supervisor of the store's host knows the ends of its own ranks.
  if (!is_on() || worker.host == store_host || job_.plan.store_port == 0) return;
  Command command;
  RankGone& rank_gone = *command.mutable_rank_gone();
  rank_gone.set_generation(job_.generation);
  rank_gone.set_rank(static_cast<std::uint32_t>(worker.end.rank));
  rank_gone.set_rejoins(static_cast<std::uint32_t>(worker.rejoins));
  job_.hosts.send(store_host, command);
}

}  // namespace ivy
