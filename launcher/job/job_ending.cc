// SPDX-License-Identifier: Apache-2.0
// The sections are in the order in which a job ends (job_ending.h), except for the last one: an end
// without waiting, and an exception in one of the steps.
#include "launcher/job/job_ending.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <memory>
#include <utility>

#include "launcher/job/advice.h"
#include "launcher/job/ranks/rank_rows.h"
#include "launcher/report/missing_module.h"
#include "launcher/screen/json_text.h"
#include "launcher/screen/machine_output.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Time for hosts that have reported to close their connections.
constexpr milliseconds kFinishLimit{1'000};
// Hosts remove the job's containers before they close their connections.
constexpr milliseconds kContainerLimit{30'000};
// Hosts that have not reported this long after the grace are named.
constexpr milliseconds kReportTimeout{4'000};

}  // namespace

void write_at_once(const std::string& text) {
  pollfd terminal{STDERR_FILENO, POLLOUT, 0};
  if (poll(&terminal, 1, static_cast<int>(JobScreen::kInterruptedDrain.count())) <= 0) return;
  const std::string harmless = escape_control(text);
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, harmless.data(), harmless.size());
}

JobEnding::JobEnding(JobContext& job, BringUp& bring_up, StdinFeed& stdin_feed,
                     Preemption& preemption, RankEvents& ranks, HostLosses& losses,
                     HostNotices& notices, Restarts& restarts, CtlService& service,
                     JobRecordWriter& record, JobDrill& drill)
    : job_(job),
      bring_up_(bring_up),
      stdin_feed_(stdin_feed),
      preemption_(preemption),
      ranks_(ranks),
      losses_(losses),
      notices_(notices),
      restarts_(restarts),
      service_(service),
      record_(record),
      drill_(drill),
      fetch_(job),
      drain_timer_(job.loop),
      stop_timer_(job.loop),
      report_timer_(job.loop) {}

// ---- Stop: first the evidence, then TERM, then KILL ---------------------------------------------

void JobEnding::collect_evidence() {
  ranks_.evidence().after_failure([this] { job_.phase.apply_later(JobEvent::kEvidenceReady); });
}

void JobEnding::stop(milliseconds grace) {
  bring_up_.cancel();
  stdin_feed_.stop();
  job_.screen.cancel_opening();
  const LauncherReason why = job_.launcher_end.reason;
  Command command;
  Stop& stop = *command.mutable_stop();
  stop.set_grace_ms(static_cast<std::uint32_t>(grace.count()));
  // The workers that listen know by then which rank failed: the relay has sent it.
  stop.set_after_failure((!job_.has_reason() && !job_.workers.attempt_end()) ||
                         why == LauncherReason::kHostLost ||
                         why == LauncherReason::kSupervisorLost);
  stop.set_interrupt(why == LauncherReason::kInterrupted && job_.launcher_end.signal == SIGINT);
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    HostRecord& host = job_.hosts[index];
    // A spare runs nothing, and could not be started any more.
    if (host.is_spare || host.is_returning) continue;
    if (job_.hosts.send(index, command) || host.reported) continue;
    // The host never came up. If it has a supervisor, that detects the closed connection.
    host.session->close();
    host.lost = true;
  }
  // A kill, a timeout and a stall end the job in time, even if no reader takes the output.
  if (job_.phase.state() == JobState::kKilling || why == LauncherReason::kTimeout ||
      job_.workers.has_stalled()) {
    drain_timer_.expires_after(grace + JobScreen::kDrainAfterKill);
    drain_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) give_up_output();
    });
  }
  await_reports(grace);
  stop_timer_.expires_after(grace + kStopTimeout);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) hosts_did_not_stop();
  });
  job_.phase.check_end_later();
}

void JobEnding::await_reports(milliseconds grace) {
  report_timer_.expires_after(grace + kReportTimeout);
  report_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) print_unconfirmed();
  });
}

void JobEnding::print_unconfirmed() {
  std::vector<std::string> awaited;
  for (const HostRecord& host : job_.hosts)
    if (!host.reported && !host.lost && !host.is_spare) awaited.push_back(host.name());
  if (awaited.empty()) return;
  const bool is_limited = job_.phase.state() != JobState::kConfirming;
  const auto left_s =
      std::chrono::duration_cast<std::chrono::seconds>(kStopTimeout - kReportTimeout);
  // A host can report only after its output has been taken.
  const bool has_output = job_.has_all_output();
  job_.print("waiting for " + fold_host_names(awaited) +
             " to confirm that no processes of the job are left" +
             (has_output ? "" : ", and for the reader of its output (Ctrl-C discards the rest)") +
             (is_limited ? ", for " + std::to_string(left_s.count()) + " s at most" : ""));
}

void JobEnding::hosts_did_not_stop() {
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    HostRecord& host = job_.hosts[index];
    if (host.reported || host.lost || host.is_spare) continue;
    host.session->close();
    losses_.lost(index, HostLoss::kSupervisor, "it did not confirm that the job has stopped");
  }
}

void JobEnding::cancel_stop() {
  stop_timer_.cancel();
  report_timer_.cancel();
  drain_timer_.cancel();
}

// ---- Reports: every host confirms that no process is left ---------------------------------------

void JobEnding::take_report(std::size_t index, const Report& report) {
  HostRecord& host = job_.hosts[index];
  if (host.is_planned() && report.generation() != job_.generation) return;
  host.reported = true;
  job_.workers.host_reported(index);
  if (report.left_behind_count() > 0) {
    job_.leftovers.count += report.left_behind_count();
    job_.leftovers.hosts.insert(host.name());
    for (const std::string& name : report.left_behind())
      ++job_.leftovers.names[RemoteText(name).line()];
  }
  for (const Leftover& leftover : report.leftovers())
    job_.unclean.push_back(host.name() + ": pid " + std::to_string(leftover.pid()) + " (" +
                           RemoteText(leftover.name()).line() +
                           ") cannot be killed: " + RemoteText(leftover.state()).line() + " in " +
                           RemoteText(leftover.waiting_in()).line());
  if (!report.clean() && report.leftovers().empty())
    job_.unclean.push_back(host.name() +
                           ": its processes could not be read; its workers may still run");
  if (!report.reason().empty() && losses_.supervisor_stopped(index, report.reason())) return;
  check_end();
}

// Acts once every host has reported or is lost and all output is here: either another attempt
// follows, or the job ends.
void JobEnding::check_end() {
  const JobState state = job_.phase.state();
  if (state == JobState::kDone || !job_.hosts.all_reported()) return;
  if (!job_.screen.is_discarding() && !job_.has_all_output()) {
    if (job_.was_started()) job_.screen.start_reader_note();
    return;
  }
  const bool is_over = state == JobState::kStopping || state == JobState::kConfirming;
  const bool is_preempted = preemption_.ends_job();
  if (is_over && restarts_.awaits_progress(is_preempted)) return;
  if (is_over) notices_.settle();
  if (!is_over || !restarts_.decide(is_preempted)) return job_.phase.apply(JobEvent::kAllReported);
  cancel_stop();
  stdin_feed_.stop();
  job_.phase.apply(JobEvent::kGroupExited);
}

bool JobEnding::awaits_only_output() const {
  const JobState state = job_.phase.state();
  const bool is_ending =
      state == JobState::kStopping || state == JobState::kConfirming || state == JobState::kKilling;
  return is_ending && job_.hosts.all_reported();
}

void JobEnding::give_up_output() {
  job_.screen.discard_unread();
  // With the credit, hosts can send the rest, which is dropped here, and then their report.
  job_.hosts.grant_window();
  job_.phase.check_end();
}

// ---- The last part, in the order in which it happens --------------------------------------------

void JobEnding::finish() {
  stdin_feed_.stop();
  restarts_.cancel();
  // The limit of the stop applies to the remaining output too, and so does the limit for files of
  // the next attempt that are still being opened.
  if (drain_timer_.cancel() > 0 || job_.screen.is_opening())
    job_.screen.output().limit_finish(JobScreen::kDrainAfterKill);
  stop_timer_.cancel();
  report_timer_.cancel();
  job_.screen.cancel_opening();
  run(last_part());
}

void JobEnding::run(Awaitable<void> steps) {
  if (sequence_) sequence_->stop();
  sequence_ = std::make_unique<Sequence>(job_.loop);
  sequence_->start(std::move(steps));
}

Awaitable<void> JobEnding::last_part() {
  co_await fetch_.bring_back(*sequence_);
  co_await release_hosts();
  co_await summarize_and_exit();
}

// Tells the hosts that they may forget the job, and waits until they have closed their connections.
Awaitable<void> JobEnding::release_hosts() {
  const auto send_finish = [this](const Arrival<Done>& arrive) {
    Command command;
    command.mutable_finish();
    const auto open = std::make_shared<std::size_t>(1);
    const auto one_closed = [arrive, open] {
      if (--*open == 0) arrive({});
    };
    for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
      if (!job_.hosts.send(index, command)) {
        job_.hosts[index].session->close();
        continue;
      }
      ++*open;
      job_.hosts[index].session->expect_end(
          [&loop = job_.loop, one_closed] { boost::asio::post(loop, one_closed); });
    }
    boost::asio::post(job_.loop, one_closed);
  };
  const milliseconds limit = job_.options.container.empty() ? kFinishLimit : kContainerLimit;
  co_await sequence_->wait_at_most<Done>(limit, send_finish);
}

Awaitable<void> JobEnding::summarize_and_exit() {
  // A takeover that was given up exits by itself, and the job continues without this launcher.
  if (std::exchange(job_.is_muted, true)) co_return;
  if (job_.was_started()) job_.screen.start_reader_note();
  co_await last_output(true);
  job_.screen.cancel_reader_note();
  print_summary();
  // Prints messages, so it precedes the last output.
  co_await preemption_.requeue_if_due(*sequence_, outcome_);
  co_await close_and_exit();
}

Awaitable<void> JobEnding::close_and_exit() {
  co_await last_output(false);
  record_.stop();
  co_await service_.end(*sequence_, outcome_.exit_code, cause_);
  if (JoinedNodes* const joined = job_.request.joined; joined != nullptr) {
    const auto send_end = [this, joined](const Arrival<Done>& arrive) {
      joined->end(outcome_.exit_code, [arrive] { arrive({}); });
    };
    co_await sequence_->wait_posted<Done>(send_end);
  }
  if (!exits_now_) {
    job_.reports.finish();
    write_metrics(outcome_.exit_code);
  }
  // Job::exit(), then the callback of main.cc.
  job_.actions.exit(outcome_.exit_code, outcome_.raise_signal);
}

// Waits until everything printed so far is on the console and in the files, or for the limit of
// Output::limit_finish().
Awaitable<void> JobEnding::last_output(bool summary_follows) {
  const auto finish = [&](const Arrival<Done>& arrive) {
    job_.screen.output().finish([arrive] { arrive({}); });
    summary_follows_ = summary_follows;
  };
  co_await sequence_->wait<Done>(finish);
  summary_follows_ = false;
}

// ---- The summary --------------------------------------------------------------------------------

void JobEnding::print_summary() {
  const Output& output = job_.screen.output();
  losses_.report_lost_members();
  const std::vector<WorkerEnd> ends = job_.worker_ends();
  outcome_ = judge(ends, job_.launcher_end);
  job_.faults.attempt_failed(
      named_failure(outcome_.first ? &ends[*outcome_.first] : nullptr, job_.launcher_end),
      job_.generation, monotonic_ns());
  std::string text = drill_.table() + advice(ends, outcome_);
  // A job whose output is incomplete did not succeed.
  std::string output_failure;
  if (outcome_.exit_code == 0 && !output.console_failure().empty()) {
    outcome_.exit_code = kExitInternal;
    output_failure = "error[IVY-O003]: all ranks succeeded, but " + output.console_failure();
    text += "ivyrun: " + output_failure + "\n";
  }
  // Neither did a job whose results are missing.
  if (!fetch_.failure().empty()) {
    const bool is_first = outcome_.exit_code == 0;
    const std::string fetch_failure =
        (is_first ? "error[IVY-O004]: all ranks succeeded, but files of --fetch are missing: "
                  : "error[IVY-O004]: files of --fetch are missing: ") +
        fetch_.failure();
    if (is_first) outcome_.exit_code = kExitFetchFailed;
    if (is_first) output_failure = fetch_failure;
    text += "ivyrun: " + fetch_failure + "\n";
  }
  SummaryInputs inputs;
  inputs.finding = ranks_.evidence().finding();
  inputs.attempts = restarts_.failed();
  inputs.losses = ranks_.losses().lines();
  inputs.left_out = job_.hosts.left_out();
  inputs.max_attempts = job_.max_attempts();
  inputs.ends = &ends;
  inputs.launcher_end = &job_.launcher_end;
  inputs.outcome = &outcome_;
  inputs.started_at_ns = job_.started_at_ns;
  inputs.world_size = job_.plan.world_size;
  inputs.log_path = [&output](int rank) { return output.log_path(rank, 2); };
  inputs.quiet = job_.options.quiet;
  inputs.attempt = static_cast<int>(job_.generation) + 1;
  if (job_.was_started()) {
    inputs.head_logs = job_.screen.head_logs(job_.generation);
    inputs.node_logs = job_.screen.node_logs(job_.generation);
  }
  if (stdin_feed_.has_consumed_input(job_.input_taken))
    inputs.notes.push_back(
        "ivyrun read its standard input, but no rank used it; --stdin none leaves it to "
        "the commands after ivyrun");
  inputs.output_errors = output.output_errors();
  inputs.unclean = job_.unclean;
  if (job_.leftovers.count > 0) inputs.notes.push_back(leftovers_text(job_.leftovers));
  if (job_.was_started() && job_.hosts.may_lose_hosts() && !inputs.left_out.empty())
    inputs.notes.push_back("the job ended with " + job_.hosts.members_text());
  for (std::string& error : job_.reports.write_errors())
    inputs.output_errors.push_back(std::move(error));
  inputs.device_lines =
      device_lines(job_.device_notes, outcome_.first ? &ends[*outcome_.first] : nullptr);
  cause_ = output_failure.empty() ? headline(inputs) : output_failure;
  text += summary(inputs);
  if (!text.empty() && job_.options.summary == SummaryChoice::kAuto) job_.screen.print(text);
  record_verdict(inputs);
}

// Returns advice that needs the output of all ranks.
std::string JobEnding::advice(const std::vector<WorkerEnd>& ends, const Outcome& outcome) const {
  const JobPlan& plan = job_.plan;
  if (plan.hosts.empty()) return {};
  const MasterAddress master{plan.hosts.front().name, plan.master_address, plan.master_port,
                             plan.store_port != 0};
  std::string text;
  if (plan.hosts.size() > 1) {
    if (const auto advice = overwritten_master_address(ends, master)) text += render(*advice);
  }
  if (const auto advice = taken_master_port(ends, master)) text += render(*advice);
  if (!outcome.first) return text;
  const WorkerEnd& first = ends[*outcome.first];
  if (const auto advice = missing_input(first, job_.options.input)) text += render(*advice);
  const PlannedHost& host = plan.host_of_rank(first.rank);
  const std::optional<HostFacts>& facts = job_.hosts[host.host_index].facts;
  if (!facts) return text;
  // Python interpreters are searched only on this machine. The search reads file systems that may
  // be slow, so a launcher that leaves skips it.
  const bool may_search = host.transport == Transport::kLocal && !exits_now_;
  const std::string module = missing_module(first.stderr_tail);
  ModuleSearch search;
  search.facts = &*facts;
  if (may_search) search.caller = &job_.request.caller;
  const std::string& program = facts->program_path();
  const std::string& working_directory = job_.options.working_directory;
  const std::string program_directory = program.substr(0, program.rfind('/'));
  search.project_directories = {working_directory, program_directory};
  if (!exits_now_ && program.ends_with(".py") && program_directory != working_directory)
    search.unsearched_directory = working_directory;
  const std::string* const safe_path = find_variable(job_.request.caller, "PYTHONSAFEPATH");
  search.has_safe_path = !exits_now_ && safe_path != nullptr && !safe_path->empty();
  if (plan.hosts.size() > 1) {
    std::vector<std::string> hosts;
    for (const WorkerEnd& end : ends)
      if (end.host != (hosts.empty() ? "" : hosts.back()) &&
          (&end == &first || (!module.empty() && missing_module(end.stderr_tail) == module)))
        hosts.push_back(end.host);
    search.hosts = fold_host_names(hosts);
    if (!exits_now_) search.own_directories = search.project_directories;
  }
  return text + missing_module_text(module, search) +
         missing_library_text(first.stderr_tail, search);
}

void JobEnding::record_verdict(const SummaryInputs& inputs) {
  if (!job_.reports.wants_verdict(inputs.head_logs)) return;
  boost::json::object verdict = verdict_object(inputs);
  job_.reports.verdict(verdict);
  job_.reports.write_attempt_file(inputs.head_logs, verdict);
  if (job_.options.summary != SummaryChoice::kJson) return;
  boost::json::object line{
      {"schema", kMachineSchema}, {"event", "verdict"}, {"job", job_.request.identity.job_id}};
  for (auto& field : verdict) line[field.key()] = std::move(field.value());
  job_.screen.print(json_line(line) + "\n");
}

// Writes the last snapshot of --metrics-file. A failure cannot be in the summary, which was printed
// before.
void JobEnding::write_metrics(int exit_code) {
  MetricsFile& file = job_.reports.metrics();
  if (!file.is_wanted()) return;
  ctl::RanksDescription ranks;
  add_rank_rows(job_.workers, {}, monotonic_ns(), ranks);
  MetricsInputs inputs = job_.metrics_inputs();
  inputs.exit_code = exit_code;
  const bool was_ok = file.write_error().empty();
  file.end(metrics_text(inputs, ranks));
  if (const std::string error = file.write_error(); was_ok && !error.empty())
    write_at_once("ivyrun: warning: " + error + "\n");
}

// ---- Ends in a hurry ----------------------------------------------------------------------------

void JobEnding::exit_now() {
  exits_now_ = true;
  job_.is_muted = true;
  report_timer_.cancel();
  job_.print("exiting now; each host stops its remaining processes when its lease expires");
  print_summary();
  job_.hosts.close_sessions();
  job_.screen.output().limit_finish(JobScreen::kInterruptedDrain);
  run(close_and_exit());
}

// The exception may have ended any step of the last part.
void JobEnding::handle_exception(const Diagnostic& reason) {
  if (!job_.is_muted) return run(summarize_and_exit());
  Output& output = job_.screen.output();
  if (std::exchange(summary_follows_, false))
    return output.limit_finish(JobScreen::kInterruptedDrain);
  if (std::exchange(exception_handled_, true)) {
    write_at_once(render(reason));
    return job_.actions.exit(kExitInternal, 0);
  }
  output.print(render(reason));
  output.limit_finish(JobScreen::kInterruptedDrain);
  run(exit_after_failure());
}

Awaitable<void> JobEnding::exit_after_failure() {
  co_await last_output(false);
  job_.actions.exit(kExitInternal, 0);
}

}  // namespace ivy
