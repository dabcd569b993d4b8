#include "launcher/job/job_ending.h"

#include <poll.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <memory>
#include <utility>

#include "launcher/job/advice.h"
#include "launcher/job/rank_rows.h"
#include "launcher/report/missing_module.h"
#include "launcher/screen/json_text.h"
#include "launcher/screen/machine_output.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Hosts have proved that nothing is left; this long they may take to close the connection.
constexpr milliseconds kFinishLimit{1'000};
// Hosts that have not confirmed the end this long after the grace are named.
constexpr milliseconds kReportPatience{4'000};

// "ended 3 processes that ranks had left behind on node1: sleep (2), wandb-core"
std::string left_behind_text(const LeftBehind& left) {
  std::string text = "ended " + std::to_string(left.count) +
                     (left.count == 1 ? " process" : " processes") +
                     " that ranks had left behind on " + fold_host_names(left.hosts);
  const char* separator = ": ";
  for (const auto& [name, count] : left.names) {
    text += separator + name + (count > 1 ? " (" + std::to_string(count) + ")" : "");
    separator = ", ";
  }
  return text;
}

}  // namespace

void write_at_once(const std::string& text) {
  pollfd place{STDERR_FILENO, POLLOUT, 0};
  if (poll(&place, 1, static_cast<int>(JobScreen::kInterruptedDrain.count())) <= 0) return;
  const std::string harmless = escape_control(text);
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, harmless.data(), harmless.size());
}

JobEnding::JobEnding(JobContext& job, Handlers handlers)
    : job_(job),
      handlers_(std::move(handlers)),
      drain_timer_(job.loop),
      stop_timer_(job.loop),
      finish_timer_(job.loop),
      report_timer_(job.loop) {}

void JobEnding::stop(milliseconds grace) {
  job_.screen.stop_waiting();
  const LauncherReason why = job_.launcher_end.reason;
  Command command;
  Stop& stop = *command.mutable_stop();
  stop.set_grace_ms(static_cast<std::uint32_t>(grace.count()));
  // By then their workers on the control socket know who failed.
  stop.set_after_failure((!job_.has_reason() && !job_.workers.attempt_end()) ||
                         why == LauncherReason::kHostLost ||
                         why == LauncherReason::kSupervisorLost);
  stop.set_interrupt(why == LauncherReason::kInterrupted && job_.launcher_end.signal == SIGINT);
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    HostRecord& host = job_.hosts[index];
    if (job_.hosts.send(index, command) || host.reported) continue;
    // It never came up: its supervisor, if there is one, sees the end of its carrier.
    host.session->close();
    host.lost = true;
  }
  // A kill, a timeout and a stall end the job in time, even if the output has no reader.
  if (job_.phase.state() == JobState::kKilling || why == LauncherReason::kTimeout ||
      job_.workers.has_stalled()) {
    drain_timer_.expires_after(grace + JobScreen::kDrainAfterKill);
    drain_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) give_up_output();
    });
  }
  await_reports(grace);
  stop_timer_.expires_after(grace + kStopPatience);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) hosts_did_not_stop();
  });
  job_.phase.check_end_later();
}

void JobEnding::await_reports(milliseconds grace) {
  report_timer_.expires_after(grace + kReportPatience);
  report_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) say_unconfirmed();
  });
}

void JobEnding::say_unconfirmed() {
  std::vector<std::string> awaited;
  for (const HostRecord& host : job_.hosts)
    if (!host.reported && !host.lost) awaited.push_back(host.name());
  if (awaited.empty()) return;
  const bool is_limited = job_.phase.state() != JobState::kConfirming;
  const auto left_s =
      std::chrono::duration_cast<std::chrono::seconds>(kStopPatience - kReportPatience);
  // A host cannot report before its output has been taken.
  const bool has_output =
      job_.workers.has_all_output([this](std::size_t host) { return job_.hosts[host].lost; });
  job_.say("waiting for " + fold_host_names(awaited) +
           " to confirm that no process of the job is left" +
           (has_output ? "" : ", and for the reader of its output (Ctrl-C: without the rest)") +
           (is_limited ? ", for " + std::to_string(left_s.count()) + " s at most" : ""));
}

void JobEnding::hosts_did_not_stop() {
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    HostRecord& host = job_.hosts[index];
    if (host.reported || host.lost) continue;
    host.session->close();
    handlers_.host_did_not_stop(index, "it did not confirm that the job has stopped");
  }
}

bool JobEnding::awaits_only_output() const {
  const JobState state = job_.phase.state();
  const bool is_ending =
      state == JobState::kStopping || state == JobState::kConfirming || state == JobState::kKilling;
  return is_ending && job_.hosts.all_reported();
}

void JobEnding::give_up_output() {
  job_.screen.give_up();
  // The hosts can then send the rest, which is dropped here, and their report.
  job_.hosts.grant_window();
  job_.phase.check_end();
}

void JobEnding::forget_stop() {
  stop_timer_.cancel();
  report_timer_.cancel();
  drain_timer_.cancel();
}

void JobEnding::finish() {
  // Everything has ended before its time was up; a reader that takes nothing gets no more of it.
  // So does a file system that has not opened the files of workers that do not start any more.
  if (drain_timer_.cancel() > 0 || job_.screen.is_beginning())
    job_.screen.output().limit_finish(JobScreen::kDrainAfterKill);
  stop_timer_.cancel();
  report_timer_.cancel();
  job_.screen.stop_waiting();
  Command command;
  command.mutable_finish();
  auto open = std::make_shared<std::size_t>(1);
  auto one_over = [this, open] {
    if (--*open == 0) conclude();
  };
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    if (!job_.hosts.send(index, command)) continue;
    ++*open;
    job_.hosts[index].session->expect_end(
        [this, one_over] { boost::asio::post(job_.loop, one_over); });
  }
  finish_timer_.expires_after(kFinishLimit);
  finish_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) conclude();
  });
  one_over();
}

void JobEnding::conclude() {
  if (std::exchange(job_.concluded, true)) return;
  finish_timer_.cancel();
  if (job_.was_started()) job_.screen.await_reader();
  job_.screen.output().finish([this] {
    summary_follows_ = false;
    job_.screen.stop_awaiting_reader();
    const Outcome outcome = say_summary();
    handlers_.requeue(outcome, [this, outcome] {
      job_.screen.output().finish([this, outcome] { say_over(outcome); });
    });
  });
  summary_follows_ = true;
}

// The summary has told of what went wrong before the last text.
void JobEnding::end_state(MetricsFile& file, const std::string& text) {
  const bool was_well = file.complaint().empty();
  file.end(text);
  if (const std::string missing = file.complaint(); was_well && !missing.empty())
    write_at_once("ivyrun: warning: " + missing + "\n");
}

// The last text of --metrics-file.
void JobEnding::write_state(int exit_code) {
  if (!job_.events.metrics().is_wanted()) return;
  ctl::RanksDescription ranks;
  add_rank_rows(job_.workers, {}, monotonic_ns(), ranks);
  MetricsInputs inputs = job_.metrics_inputs();
  inputs.exit_code = exit_code;
  end_state(job_.events.metrics(), metrics_text(inputs, ranks));
}

void JobEnding::say_over(const Outcome& outcome) {
  handlers_.tell_followers(outcome, summary_, [this, outcome] {
    if (!leaves_) job_.events.finish();
    if (!leaves_) write_state(outcome.exit_code);
    handlers_.over(outcome.exit_code, outcome.raise_signal);
  });
}

void JobEnding::leave() {
  leaves_ = true;
  job_.concluded = true;
  report_timer_.cancel();
  job_.say("exiting now; each host stops its remaining processes when its lease expires");
  const Outcome outcome = say_summary();
  job_.hosts.close_sessions();
  job_.screen.output().limit_finish(JobScreen::kInterruptedDrain);
  job_.screen.output().finish([this, outcome] { say_over(outcome); });
}

// Its next step may have been lost with the exception.
void JobEnding::fail(const Diagnostic& reason) {
  if (!job_.concluded) return conclude();
  Output& output = job_.screen.output();
  if (std::exchange(summary_follows_, false))
    return output.limit_finish(JobScreen::kInterruptedDrain);
  if (std::exchange(has_failed_, true)) {
    write_at_once(render(reason));
    return handlers_.over(kExitInternal, 0);
  }
  output.say(render(reason));
  output.limit_finish(JobScreen::kInterruptedDrain);
  output.finish([this] { handlers_.over(kExitInternal, 0); });
}

// Advice about what the ranks have printed, that only the launcher can give.
std::string JobEnding::hints(const std::vector<WorkerEnd>& ends, const Outcome& outcome) const {
  const JobPlan& plan = job_.plan;
  if (plan.hosts.empty()) return {};
  const MasterPlace master{plan.hosts.front().name, plan.master_address, plan.master_port,
                           plan.store_port != 0};
  std::string text;
  if (plan.hosts.size() > 1) {
    if (const auto hint = overwritten_master_address(ends, master)) text += render(*hint);
  }
  if (const auto hint = taken_master_port(ends, master)) text += render(*hint);
  if (!outcome.first) return text;
  const WorkerEnd& first = ends[*outcome.first];
  if (const auto hint = missing_input(first, job_.options.stdin_choice)) text += render(*hint);
  const PlannedHost& host = plan.host_of_rank(first.rank);
  const std::optional<HostFacts>& facts = job_.hosts[host.host_index].facts;
  if (!facts) return text;
  // Pythons are looked for on this machine only. The search reads file systems that may be slow, so
  // a launcher that leaves at once does without it.
  const bool may_search = host.carrier == Carrier::kLocal && !leaves_;
  const std::string module = missing_module(first.stderr_tail);
  MissingPlace place{"", &*facts, may_search ? &job_.request.caller : nullptr, {}, {}};
  const std::string script = facts->program_path();
  const std::vector<std::string> directories = {job_.options.working_directory,
                                                script.substr(0, script.rfind('/'))};
  place.project_directories = directories;
  const std::string* const safe_path = find_variable(job_.request.caller, "PYTHONSAFEPATH");
  place.has_safe_path = !leaves_ && safe_path != nullptr && !safe_path->empty();
  if (plan.hosts.size() > 1) {
    std::vector<std::string> hosts;
    for (const WorkerEnd& end : ends)
      if (end.host != (hosts.empty() ? "" : hosts.back()) &&
          (&end == &first || (!module.empty() && missing_module(end.stderr_tail) == module)))
        hosts.push_back(end.host);
    place.hosts = fold_host_names(hosts);
    if (!leaves_) place.own_directories = directories;
  }
  return text + missing_module_text(module, place) + missing_library_text(first.stderr_tail, place);
}

Outcome JobEnding::say_summary() {
  const Output& output = job_.screen.output();
  SummaryInputs inputs;
  handlers_.add_to_summary(inputs);
  const std::vector<WorkerEnd> ends = job_.worker_ends();
  Outcome outcome = judge(ends, job_.launcher_end);
  summary_ = hints(ends, outcome);
  // Without its output a job is not a success: its result is incomplete.
  if (outcome.exit_code == 0 && !output.console_failure().empty()) {
    outcome.exit_code = kExitInternal;
    summary_ +=
        "ivyrun: error[IVY-O003]: all ranks succeeded, but " + output.console_failure() + "\n";
  }
  inputs.ends = &ends;
  inputs.launcher_end = &job_.launcher_end;
  inputs.outcome = &outcome;
  inputs.started_at_ns = job_.started_at_ns;
  inputs.world_size = job_.plan.world_size;
  inputs.log_path = [&output](int rank) { return output.log_path(rank, 2); };
  inputs.quiet = job_.options.quiet;
  inputs.attempt = static_cast<int>(job_.generation) + 1;
  if (job_.was_started()) {
    inputs.head_logs = job_.screen.head_logs(job_.generation);
    inputs.node_logs = job_.screen.node_logs(job_.generation);
  }
  inputs.complaints = output.complaints();
  inputs.unclean = job_.unclean;
  if (job_.left_behind.count > 0) inputs.notes.push_back(left_behind_text(job_.left_behind));
  for (const std::string& missing : {job_.events.complaint(), job_.events.metrics().complaint()})
    if (!missing.empty()) inputs.complaints.push_back(missing);
  inputs.device_lines =
      device_lines(job_.device_notes, outcome.first ? &ends[*outcome.first] : nullptr);
  summary_ += summary(inputs);
  if (!summary_.empty() && job_.options.summary == SummaryChoice::kAuto) job_.screen.say(summary_);
  record(inputs);
  return outcome;
}

void JobEnding::record(const SummaryInputs& inputs) {
  if (!job_.events.wants_verdict(inputs.head_logs)) return;
  boost::json::object verdict = verdict_object(inputs);
  job_.events.verdict(verdict);
  job_.events.attempt_ended(inputs.head_logs, verdict);
  if (job_.options.summary != SummaryChoice::kJson) return;
  boost::json::object line{
      {"schema", kMachineSchema}, {"event", "verdict"}, {"job", job_.request.identity.job_id}};
  for (auto& field : verdict) line[field.key()] = std::move(field.value());
  job_.screen.say(json_line(line) + "\n");
}

}  // namespace ivy
