#include "launcher/job/job.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <set>

#include "launcher/job/hints.h"
#include "launcher/job/waiting_line.h"
#include "launcher/options/env_files.h"
#include "launcher/options/option_values.h"
#include "launcher/plan/device_plan.h"
#include "launcher/plan/explain_env.h"
#include "launcher/plan/interpreter.h"
#include "launcher/plan/plan.h"
#include "launcher/report/missing_module.h"
#include "launcher/screen/control_filter.h"
#include "launcher/screen/log_files.h"
#include "launcher/screen/summary.h"
#include "launcher/slurm/allocation_watch.h"
#include "proto/contract/limits.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCheckTimeout{5'000};
// Time for the output after Ctrl-C while only the output is awaited, and in other hurried ends.
constexpr milliseconds kInterruptedDrain{100};
// A reader that is slower than this is named as what the end waits for.
constexpr milliseconds kReaderPatience{2'000};
// The same for the file system of --log-dir, before anything has been started.
constexpr milliseconds kLogDirPatience{2'000};
// After a kill the console has this long to take what is still queued.
constexpr milliseconds kDrainAfterKill{2'000};
// Hosts have proved that nothing is left; this long they may take to close the connection.
constexpr milliseconds kFinishLimit{1'000};
// Output bytes under way over all hosts, and the bounds for one: enough for 200 MB/s on a fast
// network, little enough that 64 hosts fit into the launcher's memory budget.
constexpr std::uint64_t kWindowOfAllHosts = 16u << 20;
constexpr std::uint64_t kWindowMost = 4u << 20;
constexpr std::uint64_t kWindowLeast = 128u << 10;

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  // At most 256 bytes: getrandom never returns fewer then.
  IVY_ASSERT(getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count));
  return bytes;
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (const char byte : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

// True if a user sits at the terminal, unlike under nohup or a scheduler.
bool is_attended() { return isatty(STDERR_FILENO) != 0; }

// Writes past the output, whose queue may never be written. A reader that takes nothing is given up
// after kInterruptedDrain.
void write_at_once(const std::string& text) {
  pollfd place{STDERR_FILENO, POLLOUT, 0};
  if (poll(&place, 1, static_cast<int>(kInterruptedDrain.count())) <= 0) return;
  const std::string harmless = escape_control(text);
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, harmless.data(), harmless.size());
}

ProgramForm program_form(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kAuto:
      return PROGRAM_AUTO;
    case ProgramKind::kScript:
      return PROGRAM_SCRIPT;
    case ProgramKind::kModule:
      return PROGRAM_MODULE;
    case ProgramKind::kExecutable:
      return PROGRAM_EXECUTABLE;
  }
  return PROGRAM_AUTO;
}

}  // namespace

JobIdentity make_job_identity() {
  return JobIdentity{hexadecimal(random_bytes(16)), random_bytes(32)};
}

Job::Job(boost::asio::io_context& loop, JobRequest request)
    : loop_(loop),
      request_(std::move(request)),
      options_(request_.options),
      job_id_(request_.identity.job_id),
      token_(request_.identity.token),
      news_(loop, news_handlers()),
      evidence_(loop, evidence_handlers()),
      start_timer_(loop),
      gather_timer_(loop),
      waiting_timer_(loop),
      timeout_timer_(loop),
      drain_timer_(loop),
      finish_timer_(loop),
      suspend_timer_(loop),
      stop_timer_(loop),
      socket_timer_(loop),
      record_timer_(loop),
      restart_timer_(loop),
      reader_timer_(loop) {
  restarts_ = RestartPolicy(restart_limits(options_.max_restarts));
}

Job::~Job() = default;

void Job::start(std::function<void(int, int)> over) {
  over_ = [this, over = std::move(over)](int exit_code, int raise_signal) {
    finish_carriers(carriers_, [=] { over(exit_code, raise_signal); });
  };
  opened_at_ns_ = monotonic_ns();
  output_ = make_output();
  for (const std::string& note : options_.notes)
    if (!options_.quiet) output_->say("ivyrun: note: " + note + "\n");
  carriers_ = make_carrier_context(loop_, options_, request_.node_binary, request_.make_agent_link);
  set_note_handler(carriers_, [this](const RemoteText& text) {
    if (!options_.quiet) output_->say("ivyrun: " + text.line() + "\n");
  });
  set_scheduler_signal_handler(carriers_, [this](int signal, bool ranks_have_it) {
    if (request_.allocation_end != nullptr)
      request_.allocation_end->received(signal, SignalSource::kStep, ranks_have_it);
  });
  if (request_.record) return resume_job();
  open_sessions();
  look_up_master();
  start_timers();
  schedule_job_socket();
}

void Job::open_sessions() {
  window_bytes_ = std::clamp(kWindowOfAllHosts / request_.hosts.size(), kWindowLeast, kWindowMost);
  hosts_.resize(request_.hosts.size());
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    HostRecord& record = hosts_[index];
    record.host = request_.hosts[index];
    record.name = record.host.name;
    record.on_this_host = is_carried_locally(options_, record.host);
    HostSessionOptions session;
    session.host = static_cast<std::uint32_t>(index);
    session.name = record.name;
    // A job that was taken over is reached by a relay here too.
    session.on_this_host = record.on_this_host && takeover_ == 0;
    session.job_id = job_id_;
    session.token = token_;
    session.takeover = takeover_;
    session.window_bytes = window_bytes_;
    session.lease = lease();
    session.make_link = [this, index](const HostLink::Handlers& handlers, int attempt) {
      return make_link(carriers_, hosts_[index].host, handlers, attempt);
    };
    record.session = std::make_unique<HostSession>(loop_, session, session_handlers(index));
  }
  for (HostRecord& record : hosts_) record.session->open();
}

Command Job::hello_for(std::size_t index) const {
  Command command;
  Hello& hello = *command.mutable_hello();
  hello.set_working_directory(options_.working_directory);
  hello.set_program(options_.command.empty() ? "" : options_.command.front());
  hello.set_program_form(program_form(options_.program_kind));
  for (const std::string& candidate : interpreter_candidates(options_, request_.caller))
    hello.add_interpreters(candidate);
  if (const std::string* path = find_variable(request_.caller, "PATH"))
    hello.set_search_path(*path);
  // Any host may become the first one.
  hello.set_reserve_port(index == 0 || may_shrink());
  hello.set_reserve_leaf_port(options_.store_proxy && hosts_.size() > 1);
  hello.set_port_low(options_.port_low);
  hello.set_port_high(options_.port_high);
  hello.set_lease_ms(static_cast<std::uint32_t>(lease().count()));
  hello.set_grace_ms(static_cast<std::uint32_t>(grace(kGraceAfterFailure).count()));
  hello.set_interface(options_.interface);
  hello.set_outlives_launcher(outlives_launcher());
  add_device_request(options_, request_.caller, hello);
  return command;
}

milliseconds Job::grace(milliseconds usual) const {
  usual = requested_grace_.value_or(options_.shutdown_timeout.value_or(usual));
  return request_.allocation_end == nullptr ? usual : request_.allocation_end->grace(usual);
}

milliseconds Job::lease() const {
  if (options_.lease) return *options_.lease;
  return is_attended() && request_.detachment == nullptr ? kLeaseAttended : kLeaseUnattended;
}

void Job::start_timers() {
  start_timer_.expires_after(options_.start_timeout);
  start_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && (state_ == JobState::kConnecting || state_ == JobState::kChecking))
      start_time_is_up();
  });
  schedule_waiting();
  if (!options_.timeout) return;
  timeout_timer_.expires_after(*options_.timeout - request_.timeout_passed);
  timeout_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || state_ == JobState::kDone) return;
    const std::string seconds = std::to_string(options_.timeout->count() / 1000);
    end_by_launcher(LauncherReason::kTimeout, 0,
                    Diagnostic{.id = "IVY-R005",
                               .what = "the job was stopped after --timeout " + seconds + " s",
                               .exit_code = kExitTimeout});
    apply(JobEvent::kTimeUp);
  });
}

void Job::schedule_waiting() {
  // A terminal's line may change often; a file gets a line at 5, 15, 30 and each further 30 s.
  const std::int64_t elapsed_s = (monotonic_ns() - opened_at_ns_) / 1'000'000'000;
  const std::int64_t next_s = elapsed_s < 5 ? 5 : elapsed_s < 15 ? 15 : (elapsed_s / 30 + 1) * 30;
  const milliseconds pause =
      output_->has_terminal() ? milliseconds(200) : milliseconds((next_s - elapsed_s) * 1000);
  waiting_timer_.expires_after(pause);
  waiting_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || (state_ != JobState::kConnecting && state_ != JobState::kChecking)) return;
    say_waiting();
    schedule_waiting();
  });
}

void Job::say_waiting() {
  const std::int64_t elapsed_ns = monotonic_ns() - opened_at_ns_;
  if (elapsed_ns < 900'000'000 || options_.quiet) return;
  std::vector<WaitingHost> waiting;
  for (const HostRecord& host : hosts_)
    if (!host.facts && !host.failure)
      waiting.push_back({host.name, host.up ? RemoteText("waiting for its answer") : host.doing});
  const auto has_come = [](const HostRecord& host) { return host.facts && !host.failure; };
  const auto up = std::count_if(hosts_.begin(), hosts_.end(), has_come);
  std::string line = waiting_line(static_cast<std::size_t>(up), hosts_.size(),
                                  std::chrono::seconds(elapsed_ns / 1'000'000'000), waiting);
  std::vector<std::string> failed;
  for (const HostRecord& host : hosts_)
    if (host.failure) failed.push_back(host.name);
  if (!failed.empty()) line += "; failed: " + fold_host_names(failed);
  if (output_->has_terminal()) {
    output_->status_line(line);
  } else {
    output_->say("ivyrun: " + line + "\n");
  }
}

std::vector<HostAnswer> Job::answers() const {
  std::vector<HostAnswer> all;
  for (const HostRecord& host : hosts_) {
    HostAnswer answer;
    answer.name = host.name;
    answer.is_here = !host.gone;
    if (host.gone) {
      all.push_back(std::move(answer));
      continue;
    }
    answer.carrier = host.up->carrier;
    answer.peer_address = host.up->peer_address;
    answer.local_address = host.up->local_address;
    answer.facts = *host.facts;
    all.push_back(std::move(answer));
  }
  return all;
}

bool Job::make_the_plan() {
  std::vector<Diagnostic> refusals;
  Result<JobPlan> plan = make_plan(planning_options(), job_id_, answers(), refusals);
  if (!plan.ok()) {
    refusals.push_back(Diagnostic{.id = "IVY-P001",
                                  .what = plan.error().message,
                                  .fix = plan.error().fix,
                                  .exit_code = kExitUsage});
  }
  if (!refusals.empty()) {
    refuse(std::move(refusals), LauncherReason::kRefused);
    return false;
  }
  plan_ = std::move(plan).value();
  for (HostRecord& host : hosts_) host.plan_index = -1;
  for (std::size_t index = 0; index < plan_.hosts.size(); ++index)
    hosts_[plan_.hosts[index].host_index].plan_index = static_cast<int>(index);
  return true;
}

void Job::check_addresses() {
  output_->status_line("");
  if (!make_the_plan()) return;
  if (!options_.dry_run) open_store();
  ask_for_checks();
  // On one host Start follows OpenStore on the same way, so its answer need not be waited for: a
  // port that was reserved can be listened on. A log's directory may be of no use.
  const bool waits_for_store = !options_.wal.empty() && !options_.dry_run;
  const bool all = std::all_of(hosts_.begin(), hosts_.end(),
                               [](const HostRecord& host) { return host.checked; });
  if (all && !waits_for_store) apply(JobEvent::kAllChecked);
}

void Job::ask_for_checks() {
  bool needed = false;
  for (const PlannedHost& planned : plan_.hosts) needed |= !hosts_[planned.host_index].on_this_host;
  for (HostRecord& host : hosts_) host.checked = !needed || host.plan_index < 0;
  if (!needed) return;
  Command command;
  CheckAddress& check = *command.mutable_check_address();
  check.set_address(plan_.master_address);
  check.set_port(plan_.master_port);
  check.set_timeout_ms(kCheckTimeout.count());
  for (HostRecord& host : hosts_)
    if (!host.checked) host.session->send(command);
}

void Job::start_workers() {
  start_timer_.cancel();
  waiting_timer_.cancel();
  output_->status_line("");
  for (const Diagnostic& warning : plan_.warnings)
    if (!options_.quiet) output_->say(render(warning));
  if (may_shrink() && std::any_of(hosts_.begin(), hosts_.end(),
                                  [](const HostRecord& host) { return host.gone.has_value(); }))
    output_->say("ivyrun: warning: starting with " + members_text() + "\n");
  may_be_lost_ = may_shrink() ? spare_members(members(), least_members()) : 0;
  if (options_.dry_run) return show_dry_run();
  const std::vector<HostAnswer> all = answers();
  const Result<EnvironmentInputs> inputs = environment_inputs(all);
  if (!inputs.ok()) return refuse_input(inputs.error());
  send_plans(*inputs);
}

// `all` must outlive them.
Result<EnvironmentInputs> Job::environment_inputs(const std::vector<HostAnswer>& all) const {
  EnvironmentInputs inputs;
  inputs.options = &options_;
  inputs.plan = &plan_;
  inputs.answers = &all;
  inputs.caller = &request_.caller;
  inputs.generation = generation_;
  inputs.from_files = IVY_TRY(read_env_files(options_.env_files, request_.caller));
  for (const PlannedHost& planned : plan_.hosts)
    inputs.interfaces.push_back(hosts_[planned.host_index].interface);
  return inputs;
}

void Job::show_dry_run() {
  const std::vector<HostAnswer> all = answers();
  const Result<EnvironmentInputs> inputs = environment_inputs(all);
  if (!inputs.ok()) return refuse_input(inputs.error());
  Result<std::string> text =
      options_.explain_env ? explain_environment(*inputs) : plan_table(options_, plan_, all);
  if (!text.ok()) return refuse_input(text.error());
  for (const HostRecord& host : hosts_) {
    if (options_.explain_env || host.gone || host.up->remote_command.empty()) continue;
    *text += "remote command: " + host.up->remote_command + "\n";
    if (!host.up->listening.empty())
      *text += "listens: " + host.up->listening +
               " here (hosts of the srun step dial back, with a key of this job alone)\n";
    break;
  }
  std::fputs(escape_control(*text).c_str(), stdout);
  std::fflush(stdout);
  boost::asio::post(loop_, [this] { apply(JobEvent::kRefused); });
}

void Job::send_plans(const EnvironmentInputs& inputs) {
  std::vector<Command> commands;
  for (const PlannedHost& planned : plan_.hosts) {
    Result<HostPlan> plan = make_host_plan(inputs, planned);
    if (!plan.ok()) return refuse_input(plan.error());
    Command& command = commands.emplace_back();
    *command.mutable_start()->mutable_plan() = std::move(plan).value();
    command.mutable_start()->set_is_last(is_last_attempt());
    command.mutable_start()->set_max_restarts(static_cast<std::uint32_t>(restarts_.max_restarts()));
    command.mutable_start()->set_last_generation(static_cast<std::uint32_t>(max_attempts() - 1));
    if (command.ByteSizeLong() <= link::kMaxPayloadBytes) continue;
    return refuse_input(Error{Code::kResourceExhausted,
                              "arguments and environment of the workers on " + planned.name +
                                  " take " + std::to_string(command.ByteSizeLong()) +
                                  " bytes; the limit is " + std::to_string(link::kMaxPayloadBytes),
                              "pass less with -x and --env-file, or put it into a file"});
  }
  const std::vector<std::string> lines = first_lines(inputs);
  // The file system of --log-dir takes its time; heartbeats go on meanwhile.
  const auto opened = [this, lines, commands = std::move(commands)](const Result<void>& begun) {
    log_dir_answered();
    if (state_ != JobState::kRunning || started_at_ns_ != 0) return;
    if (!begun.ok())
      return refuse({Diagnostic{.id = "IVY-O002",
                                .what = begun.error().message,
                                .fix = begun.error().fix,
                                .exit_code = kExitRefused}},
                    LauncherReason::kRefused);
    for (const std::string& line : lines) output_->say("ivyrun: " + line + "\n");
    start_with(commands);
  };
  await_log_dir();
  output_->begin(generation_, places(), max_attempts(), opened);
}

// Until log_dir_answered(). A server that never answers must not hold the job for ever.
void Job::await_log_dir() {
  output_begins_ = true;
  const auto is_awaited = [this] {
    return output_begins_ && (state_ == JobState::kRunning || state_ == JobState::kRestarting);
  };
  const std::string called = "the file system of --log-dir " + options_.log_dir;
  waiting_timer_.expires_after(kLogDirPatience);
  waiting_timer_.async_wait([=, this](const boost::system::error_code& error) {
    if (error || !is_awaited() || options_.quiet) return;
    output_->say("ivyrun: waiting for " + called + "\n");
  });
  start_timer_.expires_after(options_.start_timeout);
  start_timer_.async_wait([=, this](const boost::system::error_code& error) {
    if (error || !is_awaited()) return;
    refuse({Diagnostic{.id = "IVY-O002",
                       .what = called + " did not answer in --start-timeout",
                       .fix = "name a folder on another file system, or allow more: "
                              "--start-timeout",
                       .exit_code = kExitRefused}},
           LauncherReason::kRefused);
  });
}

void Job::log_dir_answered() {
  output_begins_ = false;
  waiting_timer_.cancel();
  start_timer_.cancel();
}

void Job::start_with(const std::vector<Command>& commands) {
  make_worker_records();
  started_at_ns_ = monotonic_ns();
  job_started_at_ns_ = started_at_ns_;
  for (std::size_t index = 0; index < commands.size(); ++index)
    hosts_[plan_.hosts[index].host_index].session->send(commands[index]);
  for (HostRecord& host : hosts_) {
    if (host.plan_index >= 0 || host.gone) continue;
    Command command;
    command.mutable_stop()->set_reason("no workers are planned here");
    host.session->send(command);
  }
  feed_stdin();
}

void Job::make_worker_records() {
  evidence_.watch(options_.stall_timeout);
  workers_.assign(static_cast<std::size_t>(plan_.world_size), WorkerRecord());
  workers_running_ = workers_.size();
  for (const PlannedHost& planned : plan_.hosts)
    for (const PlannedWorker& worker : planned.workers) {
      WorkerRecord& record = workers_[static_cast<std::size_t>(worker.rank)];
      record.host = planned.host_index;
      record.end.rank = worker.rank;
      record.end.host = planned.name;
    }
  std::vector<std::size_t> host_of_rank;
  for (const WorkerRecord& worker : workers_) host_of_rank.push_back(worker.host);
  news_.begin(generation_, std::move(host_of_rank));
}

std::vector<RankPlace> Job::places() const {
  std::vector<RankPlace> all;
  for (const PlannedHost& planned : plan_.hosts)
    for (const PlannedWorker& worker : planned.workers)
      all.push_back(RankPlace{worker.rank, worker.local_rank, static_cast<int>(planned.host_index),
                              planned.name});
  return all;
}

// The lines printed before the workers start.
std::vector<std::string> Job::first_lines(const EnvironmentInputs& inputs) const {
  std::vector<std::string> lines;
  if (options_.quiet) return lines;
  if (plan_.hosts.size() > 1 || options_.verbose > 0 || !plan_.device_words.empty())
    lines.push_back(plan_line(plan_));
  const std::string not_passed = not_passed_line(inputs);
  if (!not_passed.empty()) lines.push_back("note: " + not_passed);
  if (options_.report_bindings)
    for (std::string& line : binding_lines(plan_)) lines.push_back(std::move(line));
  return lines;
}

void Job::feed_stdin() {
  HostSession& host = *hosts_[workers_.front().host].session;
  if (options_.stdin_choice == "none" || !StdinFeed::worth_forwarding()) {
    host.send_input("");
    return;
  }
  StdinFeed::Handlers handlers;
  handlers.room = [&host] { return static_cast<std::size_t>(host.input_room()); };
  handlers.bytes = [&host](std::string bytes) { host.send_input(std::move(bytes)); };
  stdin_feed_ = std::make_unique<StdinFeed>(loop_, handlers);
  stdin_feed_->start();
}

void Job::apply(JobEvent event) {
  const JobStep step = job_step(state_, event);
  if (step.next != state_)
    log::debug(std::string("job: ") + name(state_) + " -> " + name(step.next));
  state_ = step.next;
  act(step.action);
}

void Job::act(JobAction action) {
  switch (action) {
    case JobAction::kNothing:
      return;
    case JobAction::kCheckAddresses:
      return check_addresses();
    case JobAction::kStartWorkers:
      return start_workers();
    case JobAction::kCollectEvidence:
      return collect_evidence();
    case JobAction::kStopAfterFailure:
      return stop_workers(grace(kGraceAfterFailure), "another worker failed");
    case JobAction::kStopByRequest:
      return stop_workers(grace(kGraceByRequest), "asked to stop");
    case JobAction::kKill:
      return stop_workers(milliseconds(0), "killed");
    case JobAction::kFinish:
      return finish();
    case JobAction::kLeave:
      return leave();
    case JobAction::kPrepareRestart:
      return prepare_restart();
    case JobAction::kRestartWorkers:
      return restart_workers();
  }
}

void Job::collect_evidence() {
  evidence_.after_failure(
      [this] { boost::asio::post(loop_, [this] { apply(JobEvent::kEvidenceReady); }); });
}

void Job::stop_workers(milliseconds grace_period, const std::string& reason) {
  start_timer_.cancel();
  waiting_timer_.cancel();
  output_->status_line("");
  if (stdin_feed_) stdin_feed_->stop();
  Command command;
  command.mutable_stop()->set_grace_ms(static_cast<std::uint32_t>(grace_period.count()));
  command.mutable_stop()->set_reason(reason);
  // By then their workers on the control socket know who failed.
  const LauncherReason why = launcher_end_.reason;
  command.mutable_stop()->set_after_failure(why == LauncherReason::kNone ||
                                            why == LauncherReason::kHostLost ||
                                            why == LauncherReason::kSupervisorLost);
  command.mutable_stop()->set_interrupt(why == LauncherReason::kInterrupted &&
                                        launcher_end_.signal == SIGINT);
  for (HostRecord& host : hosts_) {
    if (host.session->is_open()) {
      host.session->send(command);
    } else if (!host.reported) {
      // It never came up: its supervisor, if there is one, sees the end of its carrier.
      host.session->close();
      host.lost = true;
    }
  }
  // A kill and a timeout end the job in time, even if the output has no reader.
  if (state_ == JobState::kKilling || launcher_end_.reason == LauncherReason::kTimeout) {
    drain_timer_.expires_after(grace_period + kDrainAfterKill);
    drain_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      give_up_output();
    });
  }
  stop_timer_.expires_after(grace_period + kStopPatience);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) hosts_did_not_stop();
  });
  boost::asio::post(loop_, [this] { check_reported(); });
}

void Job::give_up_output() {
  output_may_be_cut_ = true;
  output_->limit_finish(kDrainAfterKill);
  // What fills the window is not going to be read: more credit lets the hosts send, and us drop,
  // the rest, so that they can finish and send their report.
  for (HostRecord& host : hosts_)
    if (host.session->is_open()) host.session->grant(window_bytes_);
  check_reported();
}

// Every host has reported, and output is still on its way, held back by who reads it.
void Job::await_reader() {
  if (waits_for_reader_ || output_may_be_cut_ || options_.quiet || started_at_ns_ == 0) return;
  waits_for_reader_ = true;
  const bool has_files = !options_.log_dir.empty() && options_.log_to != LogPlace::kNode;
  reader_timer_.expires_after(kReaderPatience);
  reader_timer_.async_wait([this, has_files](const boost::system::error_code& error) {
    if (error || output_may_be_cut_) return;
    output_->say("ivyrun: every rank has ended; waiting for the reader of the output" +
                 std::string(has_files ? " and the files of --log-dir" : "") +
                 " (Ctrl-C: without the rest)\n");
  });
}

void Job::hosts_did_not_stop() {
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    HostRecord& host = hosts_[index];
    if (host.reported || host.lost) continue;
    host.session->close();
    host_lost(index, HostLoss::kSupervisor, "it did not confirm that the job has ended");
  }
}

std::string Job::stopping_text() const {
  if (started_at_ns_ == 0) return "ending the job, no worker has been started";
  return "stopping " + std::to_string(workers_running_) +
         (workers_running_ == 1 ? " worker" : " workers");
}

void Job::interrupt(int signal) {
  const std::string called = signal_name(signal);
  ++interrupts_;
  // Everything has ended; only the console still takes what was printed.
  if (state_ == JobState::kDone) return output_->limit_finish(kInterruptedDrain);
  if (!has_sessions()) return give_up_resuming("interrupted by " + called);
  end_by_launcher(LauncherReason::kInterrupted, signal,
                  Diagnostic{.severity = Severity::kNote,
                             .id = "IVY-R003",
                             .what = "interrupted by " + called,
                             .exit_code = 128 + signal});
  if (only_output_is_awaited()) {
    output_->say("ivyrun: " + called + ": the rest of the output is given up\n");
    return give_up_output();
  }
  // A kill that is under way for another reason is what the first one asks for.
  if (state_ == JobState::kKilling && interrupts_ == 1) return;
  const JobState before = state_;
  apply(JobEvent::kInterrupted);
  const bool is_ending = state_ == JobState::kStopping || state_ == JobState::kKilling;
  if (is_ending && started_at_ns_ == 0) {
    output_->say("ivyrun: " + called + ": " + stopping_text() + "; again to leave at once\n");
  } else if (state_ == JobState::kStopping && before != JobState::kStopping) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(grace(kGraceByRequest));
    output_->say("ivyrun: " + called + ": " + stopping_text() + ", KILL follows in " +
                 std::to_string(seconds.count()) + " s; " +
                 (signal == SIGINT ? "press Ctrl-C" : "send it") + " again to kill now\n");
  } else if (state_ == JobState::kKilling) {
    output_->say("ivyrun: " + called + ": killing the workers; again to leave at once\n");
  }
}

void Job::fail(const std::string& what) {
  ++failures_;
  const Diagnostic reason{.id = "IVY-X001",
                          .what = "ivyrun itself has failed: " + what,
                          .fix =
                              "the job was ended in order; if memory and limits (ulimit -a) "
                              "suffice, report this",
                          .exit_code = kExitInternal};
  end_by_launcher(LauncherReason::kInternal, 0, reason);
  if (state_ == JobState::kDone) return fail_at_the_end(reason);
  if (!has_sessions()) return give_up_resuming(what);
  apply(failures_ == 1 ? JobEvent::kTimeUp : JobEvent::kInterrupted);
}

// Ends the launcher: its next step may have been lost with the exception.
void Job::fail_at_the_end(const Diagnostic& reason) {
  if (!concluded_) return conclude();
  if (std::exchange(summary_follows_, false)) return output_->limit_finish(kInterruptedDrain);
  if (std::exchange(gives_up_end_, true)) {
    write_at_once(render(reason));
    return over_(kExitInternal, 0);
  }
  output_->say(render(reason));
  output_->limit_finish(kInterruptedDrain);
  output_->finish([this] { over_(kExitInternal, 0); });
}

void run_to_the_end(boost::asio::io_context& loop, Job& job) {
  // Beyond this nothing can be trusted; the hosts end what is left when their lease is over.
  constexpr int kMaxFailures = 8;
  std::optional<std::string> last;
  for (int failures = 0; failures < kMaxFailures; ++failures) {
    try {
      // In here: what ends the job may throw as well.
      if (last) job.fail(*last);
      loop.run();
      return;
    } catch (const std::exception& error) {
      last = error.what();
    }
  }
  job.output().status_line("");
  // Our caller exits now: output that is only queued would be lost.
  write_at_once("ivyrun: error[IVY-X001]: ivyrun itself fails again and again; leaving: " + *last +
                "\n");
}

void Job::forward_signal(int signal) {
  Command command;
  command.mutable_signal_workers()->set_signal(signal);
  if (state_ != JobState::kRunning && state_ != JobState::kStopping) return;
  for (HostRecord& host : hosts_)
    if (host.plan_index >= 0 && host.session && host.session->is_open())
      host.session->send(command);
}

void Job::suspend(std::function<void()> ready) {
  forward_signal(SIGSTOP);
  for (HostRecord& host : hosts_)
    if (host.session) host.session->pause();
  using std::chrono::minutes;
  const auto longest = std::max<milliseconds>(kPauseLimit, lease());
  const auto is_elsewhere = [](const HostRecord& host) { return !host.on_this_host; };
  if (!options_.quiet && std::any_of(hosts_.begin(), hosts_.end(), is_elsewhere))
    output_->say("ivyrun: suspended; the other hosts end the job if it is not resumed within " +
                 std::to_string(std::chrono::duration_cast<minutes>(longest).count()) + " min\n");
  // The loop needs a moment to push it out to the carriers, and longer for one that is behind or
  // is being redialled. Ctrl-Z must not seem to do nothing, though.
  wait_until_paused(std::move(ready), monotonic_ns() + 2'000'000'000);
}

void Job::wait_until_paused(std::function<void()> ready, std::int64_t until_ns) {
  suspend_timer_.expires_after(milliseconds(100));
  suspend_timer_.async_wait(
      [this, ready = std::move(ready), until_ns](const boost::system::error_code& error) mutable {
        if (error) return;
        const auto has_paused = [](const HostRecord& host) {
          return !host.session || host.session->has_paused();
        };
        if (monotonic_ns() >= until_ns || std::all_of(hosts_.begin(), hosts_.end(), has_paused))
          return ready();
        wait_until_paused(std::move(ready), until_ns);
      });
}

void Job::resume() {
  for (HostRecord& host : hosts_)
    if (host.session) host.session->resume();
  forward_signal(SIGCONT);
}

RestartLimits Job::restart_limits(int max_restarts) const {
  RestartLimits limits;
  limits.max_restarts = max_restarts;
  // Only tests are in such a hurry: it can make the first pause shorter, never longer.
  if (const std::string* pause = find_variable(request_.caller, "IVY_TEST_RESTART_PAUSE")) {
    const Result<milliseconds> shorter = parse_duration(*pause);
    if (shorter.ok()) limits.first_pause = std::min(limits.first_pause, shorter.value());
  }
  return limits;
}

void Job::prepare_restart() {
  ++output_serial_;
  output_begins_ = false;
  reader_timer_.cancel();
  waits_for_reader_ = false;
  stop_timer_.cancel();
  drain_timer_.cancel();
  if (stdin_feed_) stdin_feed_->stop();
  // Events from now on belong to no worker; a host that is lost now is lost to the job.
  workers_.clear();
  workers_started_ = 0;
  for (HostRecord& host : hosts_)
    if (host.plan_index >= 0) host.reported = false;
  const bool has_changed = std::any_of(hosts_.begin(), hosts_.end(), [](const HostRecord& host) {
    return host.plan_index >= 0 && host.gone;
  });
  if (has_changed && !plan_again()) return;
  begin_store();
  pause_is_over_ = false;
  restart_timer_.expires_after(restart_pause_);
  restart_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    pause_is_over_ = true;
    check_restart();
  });
}

void Job::check_restart() {
  if (state_ != JobState::kRestarting || !pause_is_over_ || store_begins_) return;
  const bool is_ready = std::all_of(hosts_.begin(), hosts_.end(), [](const HostRecord& host) {
    return host.plan_index < 0 || (host.checked && !host.opens_store);
  });
  if (!is_ready) return;
  if (output_begins_) return;
  const auto opened = [this, serial = output_serial_](const Result<void>& begun) {
    if (state_ != JobState::kRestarting || serial != output_serial_) return;
    log_dir_answered();
    if (begun.ok()) return apply(JobEvent::kRestartDue);
    end_by_launcher(LauncherReason::kRefused, 0,
                    Diagnostic{.id = "IVY-O002",
                               .what = begun.error().message,
                               .fix = begun.error().fix,
                               .exit_code = kExitRefused});
    apply(JobEvent::kRefused);
  };
  await_log_dir();
  output_->begin(generation_ + 1, places(), max_attempts(), opened);
}

Command Job::start_again() const {
  Command command;
  StartAgain& start = *command.mutable_start_again();
  start.set_generation(generation_);
  start.set_is_last(is_last_attempt());
  for (const EnvVariable& variable : generation_variables(generation_)) {
    Variable& copy = *start.add_environment();
    copy.set_name(variable.name);
    copy.set_value(variable.value);
  }
  return command;
}

void Job::restart_workers() {
  ++generation_;
  lost_members_.clear();
  make_worker_records();
  started_at_ns_ = monotonic_ns();
  // Before any host hears of it: who takes the job over must not be behind its hosts.
  if (outlives_launcher()) write_record();
  if (job_socket_) job_socket_->attempt();
  if (std::exchange(plan_is_new_, false)) return start_new_plan();
  const Command command = start_again();
  for (const PlannedHost& planned : plan_.hosts) hosts_[planned.host_index].session->send(command);
}

void Job::finish() {
  timeout_timer_.cancel();
  // Everything has ended before its time was up; a reader that takes nothing gets no more of it.
  // So does a file system that has not opened the files of workers that do not start any more.
  if (drain_timer_.cancel() > 0 || output_begins_) output_->limit_finish(kDrainAfterKill);
  stop_timer_.cancel();
  restart_timer_.cancel();
  if (stdin_feed_) stdin_feed_->stop();
  Command command;
  command.mutable_finish();
  auto open = std::make_shared<std::size_t>(1);
  auto one_over = [this, open] {
    if (--*open == 0) conclude();
  };
  for (HostRecord& host : hosts_) {
    if (!host.session->is_open()) continue;
    ++*open;
    host.session->send(command);
    host.session->expect_end([this, one_over] { boost::asio::post(loop_, one_over); });
  }
  finish_timer_.expires_after(kFinishLimit);
  finish_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) conclude();
  });
  one_over();
}

std::vector<WorkerEnd> Job::worker_ends() const {
  std::vector<WorkerEnd> ends;
  for (const WorkerRecord& worker : workers_) {
    if (!worker.ended) continue;
    ends.push_back(worker.end);
    ends.back().stderr_tail = output_->stderr_tail(worker.end.rank);
    ends.back().is_just_shown = output_->is_just_shown(worker.end.rank);
  }
  return ends;
}

Outcome Job::say_summary() {
  lose_what_is_left();
  const std::vector<WorkerEnd> ends = worker_ends();
  Outcome outcome = judge(ends, launcher_end_);
  std::string text;
  // With --store-proxy a worker that looks for the store on its own host is right.
  if (plan_.hosts.size() > 1 && !options_.store_proxy) {
    const auto hint = overwritten_master_address(
        ends,
        {plan_.hosts.front().name, plan_.master_address, plan_.master_port, plan_.store_port != 0});
    if (hint) text += render(*hint);
  }
  if (outcome.first) {
    const WorkerEnd& end = ends[*outcome.first];
    const PlannedHost& host = plan_.host_of_rank(end.rank);
    const HostRecord& record = hosts_[host.host_index];
    // Only on this machine: other hosts' Pythons are not known. The search reads file systems that
    // may be slow, so a launcher that leaves at once does without it.
    if (host.carrier == Carrier::kLocal && record.facts && !leaves_)
      text += missing_module_text(missing_module(end.stderr_tail), *record.facts, request_.caller);
  }
  // Without its output a job is not a success: its result is incomplete.
  if (outcome.exit_code == 0 && !output_->console_failure().empty()) {
    outcome.exit_code = kExitInternal;
    text +=
        "ivyrun: error[IVY-O003]: every rank ended well, but " + output_->console_failure() + "\n";
  }
  SummaryInputs inputs;
  inputs.ends = &ends;
  inputs.launcher_end = &launcher_end_;
  inputs.outcome = &outcome;
  inputs.started_at_ns = started_at_ns_;
  inputs.world_size = plan_.world_size;
  inputs.log_path = [this](int rank) { return output_->log_path(rank, 2); };
  inputs.quiet = options_.quiet;
  inputs.finding = evidence_.finding();
  inputs.attempts = attempts_;
  inputs.attempt = static_cast<int>(generation_) + 1;
  inputs.max_attempts = max_attempts();
  if (started_at_ns_ != 0 && !options_.log_dir.empty()) {
    const std::string folder = log_folder(options_.log_dir, job_id_, generation_);
    if (options_.log_to != LogPlace::kNode) inputs.head_logs = folder;
    if (options_.log_to != LogPlace::kHead)
      inputs.node_logs =
          folder.starts_with('/') ? folder : options_.working_directory + "/" + folder;
  }
  inputs.complaints = output_->complaints();
  inputs.unclean = unclean_;
  text += summary(inputs);
  if (!text.empty()) output_->say(text);
  summary_text_ = text;
  return outcome;
}

void Job::leave() {
  leaves_ = true;
  concluded_ = true;
  output_->say("ivyrun: leaving now; the workers' hosts end what is left within their lease\n");
  const Outcome outcome = say_summary();
  for (HostRecord& host : hosts_) host.session->close();
  output_->limit_finish(milliseconds(100));
  output_->finish([this, outcome] {
    tell_end(outcome, [this, outcome] { over_(outcome.exit_code, outcome.raise_signal); });
  });
}

void Job::end_by_launcher(LauncherReason reason, int signal, Diagnostic diagnostic) {
  // The first reason is the cause; what follows from it is not.
  if (launcher_end_.reason != LauncherReason::kNone) return;
  launcher_end_.reason = reason;
  launcher_end_.signal = signal;
  launcher_end_.diagnostic = std::move(diagnostic);
  launcher_end_.at_ns = monotonic_ns();
}

void Job::refuse_input(const Error& error) {
  refuse({Diagnostic{
             .id = "IVY-U002", .what = error.message, .fix = error.fix, .exit_code = kExitUsage}},
         LauncherReason::kRefused);
}

void Job::refuse(std::vector<Diagnostic> diagnostics, LauncherReason reason) {
  output_->status_line("");
  // The last one ends the job in the summary, the others are said before it.
  for (std::size_t index = 0; index + 1 < diagnostics.size(); ++index)
    output_->say(render(diagnostics[index]));
  end_by_launcher(reason, 0, std::move(diagnostics.back()));
  boost::asio::post(loop_, [this] { apply(JobEvent::kRefused); });
}

}  // namespace ivy
