#include "launcher/job/restarts.h"

#include <algorithm>
#include <cstdio>

#include "launcher/options/option_values.h"
#include "launcher/plan/worker_environment.h"
#include "launcher/screen/machine_output.h"

namespace ivy {

using std::chrono::milliseconds;

namespace {

// Why an attempt failed, and what has happened to a device of that host.
std::string cause_with_device(const WorkerEnd& first, const JobContext& job) {
  const std::string device = device_reason(job.device_notes, first);
  return attempt_cause(first, job.started_at_ns) + (device.empty() ? "" : "; " + device);
}

}  // namespace

Restarts::Restarts(JobContext& job, HostLosses& losses)
    : job_(job), losses_(losses), policy_(limits(job.options.max_restarts)) {}

RestartLimits Restarts::limits(int max_restarts) const {
  RestartLimits limits;
  limits.max_restarts = max_restarts;
  // Only tests are in such a hurry: it can make the first pause shorter, never longer.
  if (const std::string* pause = find_variable(job_.request.caller, "IVY_TEST_RESTART_PAUSE")) {
    const Result<milliseconds> shorter = parse_duration(*pause);
    if (shorter.ok()) limits.first_pause = std::min(limits.first_pause, shorter.value());
  }
  return limits;
}

void Restarts::learn_max_restarts(int max_restarts) {
  if (max_restarts > policy_.max_restarts()) policy_ = RestartPolicy(limits(max_restarts));
}

void Restarts::count_spare_hosts() {
  if (job_.hosts.may_shrink())
    may_be_lost_ = spare_members(job_.hosts.members(), job_.hosts.least_members());
}

int Restarts::max_attempts() const {
  return 1 + policy_.max_restarts() + static_cast<int>(may_be_lost_);
}

bool Restarts::is_last_attempt() const {
  return static_cast<int>(job_.generation) + 1 >= max_attempts() && job_.plan.hosts.size() == 1;
}

bool Restarts::decide(bool is_preempted) {
  const bool has_lost = !losses_.members().empty();
  if (policy_.max_restarts() == 0 && !has_lost) return false;
  const std::vector<WorkerEnd> ends = job_.worker_ends();
  const LauncherEnd& reason = ending_reason();
  const Outcome outcome = judge(ends, reason);
  const WorkerEnd* const first = outcome.first ? &ends[*outcome.first] : nullptr;
  AttemptFacts facts;
  facts.restarts = counted_;
  facts.host_lost = first == nullptr && has_lost;
  const std::optional<LauncherEnd>& attempt_end = job_.workers.attempt_end();
  facts.worker_failed = first != nullptr || (attempt_end && !has_lost);
  if (first != nullptr || has_lost || attempt_end)
    facts.lived = std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(
        (first != nullptr ? first->at_ns : reason.at_ns) - job_.started_at_ns));
  facts.could_not_start = std::any_of(
      ends.begin(), ends.end(), [](const WorkerEnd& end) { return !end.exec_failure.empty(); });
  facts.has_leftovers = !job_.unclean.empty();
  facts.job_is_ending = job_.has_reason() || is_preempted;
  const RestartDecision decision = policy_.decide(facts);
  if (!decision.why_not.empty()) job_.say("no restart: " + decision.why_not);
  if (!decision.restarts) return gives_up(facts.host_lost);
  if (const std::string lacking = missing(); !lacking.empty()) {
    job_.say("no restart: " + lacking);
    return gives_up(false);
  }
  if (!facts.host_lost) ++counted_;
  pause_ = losses_.pause_for(decision.pause);
  keep_attempt(ends, reason, outcome);
  say_failed(first != nullptr  ? cause_with_device(*first, job_)
             : facts.host_lost ? lost_text(losses_.members())
             : job_.workers.has_stalled()
                 ? "its ranks made no progress (--on-stall stop)"
                 : attempt_end->diagnostic.what + ": " + attempt_end->diagnostic.cause);
  return true;
}

const LauncherEnd& Restarts::ending_reason() const {
  if (job_.has_reason()) return job_.launcher_end;
  if (!losses_.members().empty()) return losses_.members().front().end;
  return job_.workers.attempt_end() ? *job_.workers.attempt_end() : job_.launcher_end;
}

bool Restarts::gives_up(bool host_lost) {
  if (host_lost) losses_.take_as_reason();
  job_.take_attempt_end_as_reason();
  return false;
}

// attempt.json, beside the files of this attempt.
void Restarts::keep_attempt(const std::vector<WorkerEnd>& ends, const LauncherEnd& reason,
                            const Outcome& outcome) const {
  const std::string folder = job_.screen.head_logs(job_.generation);
  if (folder.empty()) return;
  SummaryInputs inputs;
  inputs.ends = &ends;
  inputs.launcher_end = &reason;
  inputs.outcome = &outcome;
  inputs.started_at_ns = job_.started_at_ns;
  inputs.world_size = job_.plan.world_size;
  inputs.log_path = [this](int rank) { return job_.screen.output().log_path(rank, 2); };
  inputs.head_logs = folder;
  inputs.attempt = static_cast<int>(job_.generation) + 1;
  inputs.max_attempts = max_attempts();
  inputs.attempts = failed_;
  job_.events.attempt_ended(folder, verdict_object(inputs));
}

void Restarts::say_failed(const std::string& cause) {
  const int number = static_cast<int>(job_.generation) + 1;
  failed_.push_back({number, cause});
  job_.events.restarts(failed_.back(), pause_);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(pause_.count()) / 1e3);
  job_.say("attempt " + std::to_string(number) + " of " + std::to_string(max_attempts()) +
           " failed: " + cause + "; attempt " + std::to_string(number + 1) + " starts in " +
           seconds + " s");
}

// Why the hosts that are left cannot run the group again, or empty.
std::string Restarts::missing() const {
  const JobHosts& hosts = job_.hosts;
  if (hosts.may_shrink()) {
    const bool suffices =
        decide_members(hosts.members(), hosts.least_members(), true) == MemberDecision::kGoOn;
    return suffices ? "" : hosts.members_text() + ": too few";
  }
  for (const HostRecord& host : hosts)
    if (host.is_planned() && host.lost) return "host " + host.name() + " is gone";
  return "";
}

Command Restarts::start(HostPlan plan) const {
  Command command;
  Start& start = *command.mutable_start();
  *start.mutable_plan() = std::move(plan);
  start.set_is_last(is_last_attempt());
  start.set_max_restarts(static_cast<std::uint32_t>(max_restarts()));
  start.set_last_generation(static_cast<std::uint32_t>(max_attempts() - 1));
  return command;
}

Command Restarts::start_again() const {
  Command command;
  StartAgain& start = *command.mutable_start_again();
  start.set_generation(job_.generation);
  start.set_is_last(is_last_attempt());
  for (const EnvVariable& variable : generation_variables(job_.generation)) {
    Variable& copy = *start.add_environment();
    copy.set_name(variable.name);
    copy.set_value(variable.value);
  }
  return command;
}

}  // namespace ivy
