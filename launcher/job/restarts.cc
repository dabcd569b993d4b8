// SPDX-License-Identifier: Apache-2.0
// The sections are in the order of a restart (restarts.h).
#include "launcher/job/restarts.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "launcher/options/option_values.h"
#include "launcher/plan/worker_environment.h"
#include "launcher/screen/machine_output.h"
#include "proto/os/clock.h"

namespace ivy {

using std::chrono::milliseconds;

namespace {

// A restart that waits reports what it waits for this long after its pause.
constexpr std::chrono::seconds kReportAfter{4};
// Earlier attempts that the message about missing progress shows: those that count, with this one.
constexpr std::size_t kMaxFailuresShown = 2;
constexpr std::size_t kMaxAwaitedShown = 4;  // Limit of the things that are named.

// Returns why an attempt failed, with the fault of a device of that host, if there was one.
std::string cause_with_device(const WorkerEnd& first, const JobContext& job) {
  const std::string device = device_reason(job.device_notes, first);
  return attempt_cause(first, job.started_at_ns) + (device.empty() ? "" : "; " + device);
}

// Only the first generation gets the input: what it has read is not sent again.
HostPlan without_input(HostPlan plan) {
  for (WorkerSpec& spec : *plan.mutable_workers()) spec.set_standard_input(false);
  return plan;
}

}  // namespace

Restarts::Restarts(JobContext& job, JobPlanner& planner, StoreController& store,
                   ProgressReader& progress, BringUp& bring_up, HealthGate& gate, RankEvents& ranks,
                   HostLosses& losses, Growth& growth, CtlService& service, JobRecordWriter& record)
    : job_(job),
      planner_(planner),
      store_(store),
      progress_(progress),
      bring_up_(bring_up),
      gate_(gate),
      ranks_(ranks),
      losses_(losses),
      growth_(growth),
      service_(service),
      record_(record),
      host_list_(job),
      policy_(limits()) {}

RestartLimits Restarts::limits() const {
  RestartLimits limits;
  limits.max_restarts = job_.max_restarts;
  limits.restart_on = job_.options.restart_on;
  limits.never_restart = job_.options.never_restart;
  limits.measures_steps = job_.options.progress_match.has_value();
  limits.measures_files = progress_.is_wanted();
  // For tests: may only make the first pause shorter.
  if (const std::string* pause = find_variable(job_.request.caller, "IVY_TEST_RESTART_PAUSE")) {
    const Result<milliseconds> shorter = parse_duration(*pause);
    if (shorter.ok()) limits.first_pause = std::min(limits.first_pause, shorter.value());
  }
  return limits;
}

void Restarts::learn_max_restarts(int max_restarts) {
  if (max_restarts <= job_.max_restarts) return;
  job_.max_restarts = max_restarts;
  policy_ = RestartPolicy(limits());
}

// ---- The decision -------------------------------------------------------------------------------

bool Restarts::awaits_progress(bool is_preempted) {
  const bool may_restart = counted_ < job_.max_restarts || !losses_.members().empty();
  const bool has_failed =
      !losses_.members().empty() || job_.workers.attempt_end() ||
      std::any_of(job_.workers.begin(), job_.workers.end(),
                  [](const WorkerRecord& worker) { return worker.has_failed(); });
  return progress_.is_wanted() && may_restart && has_failed && !job_.has_reason() &&
         !is_preempted && !progress_.has_read();
}

bool Restarts::decide(bool is_preempted) {
  const bool has_lost = !losses_.members().empty();
  if (growth_.is_reforming() && !has_lost) return decide_growth(is_preempted);
  if (job_.max_restarts == 0 && !has_lost) return false;
  const std::vector<WorkerEnd> ends = job_.worker_ends();
  const LauncherEnd& reason = ending_reason();
  const Outcome outcome = judge(ends, reason);
  const WorkerEnd* const first = outcome.first ? &ends[*outcome.first] : nullptr;
  job_.faults.attempt_failed(named_failure(first, reason), job_.generation, monotonic_ns());
  AttemptFacts facts;
  facts.restarts = counted_;
  facts.host_lost = first == nullptr && has_lost;
  const std::optional<LauncherEnd>& attempt_end = job_.workers.attempt_end();
  facts.worker_failed = first != nullptr || (attempt_end && !has_lost);
  if (first != nullptr || has_lost || attempt_end)
    facts.run_time = std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(
        (first != nullptr ? first->at_ns : reason.at_ns) - job_.started_at_ns));
  facts.could_not_start = std::any_of(
      ends.begin(), ends.end(), [](const WorkerEnd& end) { return !end.exec_failure.empty(); });
  facts.has_leftovers = !job_.unclean.empty();
  facts.job_is_ending = job_.has_reason() || is_preempted;
  facts.cause = cause_of(first);
  facts.step = job_.screen.output().step();
  facts.file = progress_.move();
  facts.file_state = progress_.state();
  if (first != nullptr) facts.first_rank = first->rank;
  if (first != nullptr) facts.operations = first->operations;
  const RestartDecision decision = policy_.decide(facts);
  if (!decision.why_not.empty() && !decision.is_futile)
    job_.print("no restart: " + decision.why_not);
  if (!decision.restarts) {
    if (decision.is_futile) end_without_progress(decision.why_not, first);
    give_up(facts.host_lost);
    return false;
  }
  if (const std::string lacking = missing(); !lacking.empty()) {
    job_.print("no restart: " + lacking);
    give_up(/*host_lost=*/false);
    return false;
  }
  if (!facts.host_lost) ++counted_;
  pause_ = losses_.pause_for(decision.pause);
  keep_attempt(ends, reason, outcome);
  FailedAttempt attempt;
  attempt.number = static_cast<int>(job_.generation) + 1;
  attempt.host = first != nullptr ? first->host : "";
  attempt.cause = first != nullptr  ? cause_with_device(*first, job_)
                  : facts.host_lost ? lost_text(losses_.members())
                  : job_.workers.has_stalled()
                      ? "its ranks made no progress (--on-stall stop)"
                      : attempt_end->diagnostic.what + ": " + attempt_end->diagnostic.cause;
  attempt.condemned = condemn(first, facts.cause);
  print_failed(std::move(attempt));
  if (!decision.note.empty()) job_.print("note: " + decision.note);
  if (job_.leftovers.count > std::exchange(reported_leftovers_, job_.leftovers.count))
    job_.screen.note(leftovers_text(job_.leftovers));
  return true;
}

// Ranks that fail after the notice, or that exit with 0, have been stopped for the other hosts.
bool Restarts::decide_growth(bool is_preempted) {
  if (job_.has_reason() || is_preempted || !job_.unclean.empty()) return false;
  pause_ = policy_.first_pause();
  print_failed({.number = static_cast<int>(job_.generation) + 1, .cause = growth_.reason()},
               " was ");
  return true;
}

std::string Restarts::condemn(const WorkerEnd* first, const AttemptCause& cause) {
  const Cause* const match =
      first == nullptr ? nullptr : find_cause(job_.options.condemn_on, cause);
  if (match == nullptr) return "";
  const std::size_t index = job_.plan.host_of_rank(first->rank).host_index;
  const std::string why = "--condemn-on " + match->text;
  if (!job_.hosts.can_do_without(index)) {
    job_.print("warning: " + first->host + " cannot be left out (" + why + "): " +
               (job_.hosts.may_shrink() ? job_.hosts.range_text() + " needs it"
                : job_.hosts.has_spares()
                    ? "no spare is left"
                    : "the number of hosts is fixed (see --spares, --nnodes MIN:MAX)") +
               "; the next attempt runs there again");
    return "";
  }
  // Its supervisor has nothing to wait for.
  Command finish;
  finish.mutable_finish();
  job_.hosts.send(index, finish);
  job_.hosts.exclude(index, {.reason = why});
  return first->host + " (" + why + ")";
}

// first: the rank that failed first; null if the attempt ended for another reason.
AttemptCause Restarts::cause_of(const WorkerEnd* first) const {
  AttemptCause cause;
  if (first == nullptr) {
    cause.host_lost = !losses_.members().empty();
    cause.has_stalled = !cause.host_lost && job_.workers.has_stalled();
    cause.store_lost = !cause.host_lost && !cause.has_stalled;
    return cause;
  }
  cause.status = first->status;
  cause.out_of_memory = first->out_of_memory;
  cause.stderr_tail = first->stderr_tail;
  for (const DeviceNote& note : job_.device_notes)
    if (note.xid != 0 && note.host == first->host) cause.xids.push_back(note.xid);
  return cause;
}

// Makes the lack of progress the reason for the job's end, whose exit code keeps schedulers from
// submitting the job again.
void Restarts::end_without_progress(const std::string& why, const WorkerEnd* first) {
  Diagnostic futile;
  futile.id = "IVY-R023";
  futile.what = why;
  futile.where = !progress_.is_wanted()        ? "--progress-match"
                 : job_.options.progress_match ? "--progress-match, --progress-file"
                                               : "--progress-file";
  const std::size_t shown = std::min(failed_.size(), kMaxFailuresShown);
  for (std::size_t i = failed_.size() - shown; i < failed_.size(); ++i)
    futile.cause += "attempt " + std::to_string(failed_[i].number) + ": " + failed_[i].cause + "\n";
  futile.cause +=
      "attempt " + std::to_string(job_.generation + 1) + ": " +
      (first != nullptr ? cause_with_device(*first, job_) : ending_reason().diagnostic.what);
  const std::string host = common_host(first);
  futile.fix = host.empty() ? "look at the cause of the last attempt"
                            : "every one of them failed first on " + host +
                                  ": try without it, --exclude " + host;
  futile.exit_code = kExitNoProgress;
  job_.end_because(LauncherReason::kNoProgress, std::move(futile));
}

// Returns the host on which the shown attempts and this one failed first; empty: not the same one,
// or the job has only this host.
std::string Restarts::common_host(const WorkerEnd* first) const {
  if (first == nullptr || job_.plan.hosts.size() < 2) return "";
  const std::size_t shown = std::min(failed_.size(), kMaxFailuresShown);
  const bool is_common =
      std::all_of(failed_.end() - static_cast<std::ptrdiff_t>(shown), failed_.end(),
                  [first](const FailedAttempt& attempt) { return attempt.host == first->host; });
  return is_common ? first->host : "";
}

const LauncherEnd& Restarts::ending_reason() const {
  if (job_.has_reason()) return job_.launcher_end;
  if (!losses_.members().empty()) return losses_.members().front().end;
  return job_.workers.attempt_end() ? *job_.workers.attempt_end() : job_.launcher_end;
}

void Restarts::give_up(bool host_lost) {
  if (host_lost) losses_.take_as_reason();
  job_.take_attempt_end_as_reason();
}

// Writes attempt.json next to the log files of this attempt.
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
  inputs.max_attempts = job_.max_attempts();
  inputs.attempts = failed_;
  inputs.left_out = job_.hosts.left_out();
  job_.reports.write_attempt_file(folder, verdict_object(inputs));
}

void Restarts::print_failed(FailedAttempt attempt, const std::string& how) {
  failed_.push_back(std::move(attempt));
  const FailedAttempt& failed = failed_.back();
  job_.reports.restarts(failed, pause_);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", static_cast<double>(pause_.count()) / 1e3);
  job_.print("attempt " + std::to_string(failed.number) + " of " +
             std::to_string(job_.max_attempts()) + how + failed.cause + "; attempt " +
             std::to_string(failed.number + 1) + " starts in " + seconds + " s" +
             (failed.condemned.empty() ? "" : ", without " + failed.condemned));
}

// Returns why the remaining hosts cannot run the group again; empty: they can.
std::string Restarts::missing() const {
  const JobHosts& hosts = job_.hosts;
  if (hosts.may_lose_hosts()) {
    const bool suffices =
        decide_members(hosts.members(), hosts.min_members(), true) == MemberDecision::kContinue;
    return suffices ? "" : hosts.too_few_text();
  }
  for (const HostRecord& host : hosts)
    if (host.is_planned() && host.lost) return "host " + host.name() + " was lost";
  return "";
}

// ---- The restart --------------------------------------------------------------------------------

void Restarts::prepare() {
  job_.screen.forget_generation();
  // The old ranks' events have no receiver from here on.
  job_.workers.clear();
  // `reported` decides in HostLosses::lost(): while it is set, a loss only affects whether the
  // group can restart. From here on it counts as in a running job, and ends the job or, with
  // --nnodes MIN:MAX, leaves out the host.
  for (HostRecord& host : job_.hosts)
    if (host.is_planned()) host.reported = false;
  due_at_ = steady_now() + pause_;
  report_at_ = due_at_ + kReportAfter;
  // A restart may take as long as a start.
  limit_at_ = due_at_ + job_.options.start_timeout;
  steps_ = std::make_unique<Sequence>(job_.loop);
  steps_->start(run());
}

void Restarts::notify() {
  if (steps_) steps_->notify();
}

void Restarts::cancel() {
  if (steps_) steps_->stop();
  gate_.cancel();
  host_list_.cancel();
  progress_.finish();
}

Awaitable<void> Restarts::run() {
  const bool has_list = co_await read_host_list();
  if (!has_list) co_return;
  const bool are_healthy = co_await gate_.pass(*steps_, job_.generation + 1);
  if (!are_healthy) co_return;
  // The checks have a limit of their own.
  limit_at_ = std::max(limit_at_, steady_now() + job_.options.start_timeout);
  report_at_ = std::max(report_at_, steady_now() + kReportAfter);
  if (!plan()) co_return;
  co_await steps_->sleep(due_at_ - steady_now());
  const bool are_ready = co_await wait_until(&Restarts::is_ready);
  if (!are_ready) co_return;
  const bool has_files = co_await open_files();
  if (!has_files) co_return;
  job_.phase.apply(JobEvent::kRestartDue);
  start_workers();
}

Awaitable<bool> Restarts::read_host_list() {
  if (!host_list_.is_due()) co_return true;
  host_list_.run([this] { notify(); });
  co_return co_await wait_until(&Restarts::has_host_list);
}

bool Restarts::plan() {
  if (job_.hosts.plan_is_outdated() || job_.hosts.has_more_hosts()) {
    const std::size_t first_before = job_.plan.hosts.front().host_index;
    if (!planner_.plan_without_excluded_hosts()) return false;
    if (job_.plan.hosts.front().host_index != first_before) {
      store_.open_on_first_host();
      bring_up_.order_checks();
    }
  }
  store_.begin_generation(job_.generation + 1);
  return true;
}

Awaitable<bool> Restarts::open_files() {
  rejection_.reset();
  const auto opened = [this](const std::optional<Diagnostic>& rejection) {
    rejection_ = rejection;
    notify();
  };
  job_.screen.open_generation(job_.generation + 1, job_.plan, job_.max_attempts(), opened);
  const bool is_in_time = co_await wait_until(&Restarts::has_opened_files);
  if (!is_in_time) co_return false;
  if (rejection_) job_.reject({*rejection_}, LauncherReason::kRejected);
  co_return !rejection_;
}

Awaitable<bool> Restarts::wait_until(bool (Restarts::*condition)() const) {
  // The step before may have ended the job.
  co_await steps_->checkpoint();
  while (!(this->*condition)()) {
    const std::chrono::steady_clock::time_point now = steady_now();
    if (now >= limit_at_) {
      reject_late();
      co_return false;
    }
    if (now >= report_at_) {
      print_waits();
      report_at_ = limit_at_;
    }
    co_await steps_->notified(std::min(report_at_, limit_at_));
  }
  co_return true;
}

std::vector<std::string> Restarts::waits() const {
  std::vector<std::string> awaited;
  if (host_list_.is_running()) awaited.push_back("the command of --hosts-from has not finished");
  if (store_.is_beginning())
    awaited.push_back("the job's store on " + store_.host_name() + " has not started the attempt");
  for (const HostRecord& host : job_.hosts) {
    if (!host.is_planned()) continue;
    if (host.opens_store) awaited.push_back(bring_up_.awaited_store(host));
    if (!host.checked) awaited.push_back(bring_up_.awaited_check(host));
  }
  if (job_.screen.is_opening())
    awaited.push_back("the directory of --log-dir or --output does not respond");
  return awaited;
}

void Restarts::print_waits() const {
  const std::vector<std::string> awaited = waits();
  const std::string number = std::to_string(job_.generation + 2);
  for (std::size_t i = 0; i < std::min(awaited.size(), kMaxAwaitedShown); ++i)
    job_.print("attempt " + number + " is waiting: " + awaited[i]);
  if (awaited.size() > kMaxAwaitedShown)
    job_.print("attempt " + number + " is waiting for " +
               std::to_string(awaited.size() - kMaxAwaitedShown) + " more responses");
}

void Restarts::reject_late() {
  const std::vector<std::string> awaited = waits();
  Diagnostic late;
  late.id = "IVY-R022";
  late.what =
      "attempt " + std::to_string(job_.generation + 2) + " could not start within --start-timeout";
  late.where = store_.host_name();
  for (const std::string& one : awaited) late.cause += (late.cause.empty() ? "" : "\n") + one;
  late.fix = "allow more time: --start-timeout; the kernel log of the host may show the cause";
  late.exit_code = kExitHostsNotUp;
  job_.reject({std::move(late)}, LauncherReason::kHostsNotUp);
}

void Restarts::start_workers() {
  ++job_.generation;
  losses_.begin_attempt();
  growth_.began();
  ranks_.begin();
  job_.started_at_ns = monotonic_ns();
  job_.reports.started(job_.generation, job_.max_attempts(), job_.started_at_ns);
  // Written before any host gets the command, because a launcher that takes the job over must know
  // the generation.
  if (job_.outlives_launcher()) record_.write();
  if (service_.socket() != nullptr) service_.socket()->attempt();
  if (job_.request.joined != nullptr)
    job_.request.joined->begin_attempt(job_.generation, job_.max_attempts(), job_.plan);
  std::vector<HostPlan> plans;
  if (planner_.is_new()) {
    Result<std::vector<HostPlan>> made = planner_.host_plans();
    if (!made.ok()) return job_.reject_input(made.error());
    plans = std::move(made).value();
  }
  for (std::size_t index = 0; index < job_.plan.hosts.size(); ++index) {
    const std::size_t host = job_.plan.hosts[index].host_index;
    if (!std::exchange(job_.hosts[host].was_started, true)) {
      // A spare: its plan is new.
      job_.hosts.send(host, bring_up_.start_command(without_input(std::move(plans[index]))));
      continue;
    }
    Command command = start_again();
    if (!plans.empty()) *command.mutable_start_again()->mutable_plan() = std::move(plans[index]);
    job_.hosts.send(host, command);
  }
}

Command Restarts::start_again() const {
  Command command;
  StartAgain& start = *command.mutable_start_again();
  start.set_generation(job_.generation);
  start.set_is_last(job_.is_last_attempt());
  for (const EnvVariable& variable : generation_variables(job_.generation)) {
    Variable& copy = *start.add_environment();
    copy.set_name(variable.name);
    copy.set_value(variable.value);
  }
  return command;
}

}  // namespace ivy
