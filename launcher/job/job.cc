#include "launcher/job/job.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "launcher/hang/rank_names.h"
#include "launcher/links/carrier_context.h"
#include "launcher/screen/control_filter.h"
#include "launcher/slurm/allocation_watch.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// A host that is silent or stuck is reported after this time, and whenever it has doubled.
constexpr std::int64_t kFirstReportNs = 4 * kSecondNs;

constexpr std::size_t kMostAwaitedShown = 4;

std::string whole_seconds(std::int64_t ns) { return std::to_string(ns / kSecondNs) + " s"; }

}  // namespace

using std::chrono::milliseconds;

// How often it is looked whether the reader of standard output is still there.
static constexpr std::chrono::seconds kReaderCheck{1};

Job::Job(boost::asio::io_context& loop, JobRequest request)
    : job_(loop, std::move(request)),
      planner_(job_),
      store_(job_),
      bring_up_(job_, planner_, store_),
      preemption_(job_),
      ranks_(job_, preemption_),
      losses_(job_, {[this](std::size_t index, const std::vector<std::uint32_t>& ranks,
                            HostLoss loss) { ranks_.lost(index, ranks, loss); },
                     [this](std::size_t index, const std::vector<std::uint32_t>& ranks,
                            const LauncherEnd& end) {
                       return ranks_.losses().goes_on_without(index, ranks, end);
                     },
                     [this] { bring_up_.check_greeted(); }}),
      restarts_(job_, losses_),
      service_(job_, {[this](CtlService::Text done) { ranks_.news().ask_operations(done); },
                      [this](const ctl::DescribeStacks& request_, CtlService::Text done) {
                        ranks_.evidence().describe(request_, done);
                      },
                      [this](milliseconds grace) { stop_workers(grace); },
                      [this] { return restarts_.max_attempts(); },
                      [this](const ctl::DescribeRanks& request_, RankEvents::Described done) {
                        ranks_.describe(std::move(done), request_.places());
                      },
                      [this] { return ranks_.losses().lines(); }}),
      ending_(job_, ending_handlers()),
      takeover_(job_, service_, restarts_, takeover_handlers()),
      timeout_timer_(loop),
      restart_timer_(loop),
      restart_limit_timer_(loop),
      absence_timer_(loop),
      reader_timer_(loop),
      pause_timer_(loop) {
  job_.phase.begin({[this](JobAction action) { act(action); }, [this] { check_end(); }});
}

Job::~Job() = default;

JobEnding::Handlers Job::ending_handlers() {
  JobEnding::Handlers handlers;
  handlers.add_to_summary = [this](SummaryInputs& inputs) {
    losses_.conclude();
    inputs.finding = ranks_.evidence().finding();
    inputs.attempts = restarts_.failed();
    inputs.losses = ranks_.losses().lines();
    inputs.max_attempts = restarts_.max_attempts();
    if (stdin_feed_ && stdin_feed_->has_eaten(job_.input_taken))
      inputs.notes.push_back(
          "ivyrun read its standard input, and no rank used any of it; --stdin none leaves it to "
          "the commands after ivyrun");
  };
  handlers.host_did_not_stop = [this](std::size_t index, const RemoteText& why) {
    losses_.lost(index, HostLoss::kSupervisor, why);
  };
  handlers.requeue = [this](const Outcome& outcome, std::function<void()> then) {
    preemption_.requeue_if_due(outcome, std::move(then));
  };
  handlers.tell_followers = [this](const Outcome& outcome, const std::string& summary,
                                   std::function<void()> then) {
    takeover_.stop_keeping();
    service_.end(outcome, summary, [this, code = outcome.exit_code, then] {
      if (job_.request.joined != nullptr) return job_.request.joined->end(code, then);
      then();
    });
  };
  handlers.over = [this](int exit_code, int raise_signal) { over_(exit_code, raise_signal); };
  return handlers;
}

Takeover::Handlers Job::takeover_handlers() {
  Takeover::Handlers handlers;
  handlers.begin = [this] {
    ranks_.begin();
    store_.take_over();
  };
  handlers.dial = [this] {
    bring_up_.dial(carriers_, [this](std::size_t index) { return session_handlers(index); });
    start_timeout();
  };
  handlers.event = [this](std::size_t index, const Event& event) { handle(index, event); };
  handlers.host_lost = [this](std::size_t index, HostLoss loss, const RemoteText& why) {
    losses_.lost(index, loss, why);
  };
  handlers.taken = [this] {
    check_end();
    // A job that has ended meanwhile, or is about to, is summed up in the foreground.
    if (job_.phase.state() == JobState::kRunning && job_.workers.running() > 0) leave_foreground();
  };
  handlers.left = [this](int exit_code) {
    timeout_timer_.cancel();
    absence_timer_.cancel();
    reader_timer_.cancel();
    over_(exit_code, 0);
  };
  return handlers;
}

void Job::start(std::function<void(int, int)> over) {
  over_ = [this, over = std::move(over)](int exit_code, int raise_signal) {
    if (stdin_feed_ && job_.input_taken) stdin_feed_->give_back(*job_.input_taken);
    finish_carriers(carriers_, [=] { over(exit_code, raise_signal); });
  };
  Output::Handlers output;
  output.consumed = [this](int index, std::uint64_t bytes) {
    HostSession* const session = job_.hosts[static_cast<std::size_t>(index)].session.get();
    if (session != nullptr && session->is_open()) session->grant(bytes);
  };
  if (job_.request.joined != nullptr)
    output.elsewhere = job_.request.joined->elsewhere(output.consumed);
  output.closed = [this] {
    job_.end_because(
        LauncherReason::kOutputClosed,
        Diagnostic{.severity = Severity::kNote,
                   .id = "IVY-O001",
                   .what = "stdout was closed by the reader (for example `| head`); job stopped",
                   .exit_code = kExitOutputClosed});
    job_.phase.apply(JobEvent::kTimeUp);
  };
  job_.screen.open(std::move(output));
  for (const std::string& note : job_.options.notes) job_.screen.note("note: " + note);
  carriers_ = std::make_shared<CarrierContext>(job_.loop, job_.options, job_.request.node,
                                               job_.request.make_agent_link);
  if (job_.request.joined != nullptr) carriers_->set_joined_hosts(job_.request.joined->hosts());
  carriers_->set_note_handler([this](const RemoteText& text) { job_.screen.note(text.line()); });
  set_scheduler_signal_handler(carriers_, [this](int signal, bool ranks_have_it) {
    preemption_.step_signalled(signal, ranks_have_it);
  });
  watch_absences();
  if (job_.takeover != 0) return takeover_.begin();
  job_.opened_unix_ms = wall_ms();
  bring_up_.dial(carriers_, [this](std::size_t index) { return session_handlers(index); });
  bring_up_.start_waiting();
  start_timeout();
  watch_reader();
  service_.schedule();
}

// Ranks that print nothing would go on for the reader of `| head`, or of an ssh that was killed.
void Job::watch_reader() {
  reader_timer_.expires_after(kReaderCheck);
  reader_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || job_.phase.state() == JobState::kDone) return;
    output().check_reader();
    watch_reader();
  });
}

void Job::start_timeout() {
  if (!job_.options.timeout) return;
  timeout_timer_.expires_after(*job_.options.timeout - job_.request.timeout_passed);
  timeout_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || job_.phase.state() == JobState::kDone) return;
    const std::string seconds = std::to_string(job_.options.timeout->count() / 1000);
    job_.end_because(LauncherReason::kTimeout,
                     Diagnostic{.id = "IVY-R005",
                                .what = "the job was stopped after --timeout " + seconds + " s",
                                .exit_code = kExitTimeout});
    job_.phase.apply(JobEvent::kTimeUp);
  });
}

void Job::act(JobAction action) {
  switch (action) {
    case JobAction::kNothing:
      return;
    case JobAction::kCheckAddresses:
      return bring_up_.check_addresses();
    case JobAction::kStartWorkers:
      return start_workers();
    case JobAction::kCollectEvidence:
      return ranks_.evidence().after_failure(
          [this] { job_.phase.apply_later(JobEvent::kEvidenceReady); });
    case JobAction::kStopAfterFailure:
      return stop_workers(job_.grace(kGraceAfterFailure));
    case JobAction::kStopByRequest:
      return stop_workers(job_.grace(kGraceByRequest));
    case JobAction::kKill:
      return stop_workers(milliseconds(0));
    case JobAction::kFinish:
      timeout_timer_.cancel();
      reader_timer_.cancel();
      restart_timer_.cancel();
      restart_limit_timer_.cancel();
      absence_timer_.cancel();
      if (stdin_feed_) stdin_feed_->stop();
      return ending_.finish();
    case JobAction::kLeave:
      absence_timer_.cancel();
      return ending_.leave();
    case JobAction::kConfirm:
      return ending_.confirm();
    case JobAction::kPrepareRestart:
      return prepare_restart();
    case JobAction::kRestartWorkers:
      return restart_workers();
  }
}

void Job::start_workers() {
  bring_up_.stop_waiting();
  for (const Diagnostic& warning : job_.plan.warnings)
    if (!job_.options.quiet) job_.screen.say(render(warning));
  if (!job_.options.doctor &&
      std::any_of(job_.hosts.begin(), job_.hosts.end(),
                  [](const HostRecord& host) { return host.gone.has_value(); }))
    job_.say("warning: starting with " + job_.hosts.members_text());
  restarts_.count_spare_hosts();
  if (job_.options.dry_run) {
    const Result<std::string> text = planner_.dry_run();
    if (!text.ok()) return job_.refuse_input(text.error());
    if (std::fputs(escape_control(*text).c_str(), stdout) < 0 || std::fflush(stdout) != 0)
      return job_.refuse(
          {Diagnostic{.id = "IVY-O003",
                      .what = std::string("standard output: ") + std::strerror(errno),
                      .exit_code = kExitInternal}},
          LauncherReason::kRefused);
    return job_.phase.apply_later(JobEvent::kRefused);
  }
  job_.events.planned(job_.plan);
  Result<std::vector<HostPlan>> plans = planner_.host_plans();
  if (!plans.ok()) return job_.refuse_input(plans.error());
  const Result<std::vector<std::string>> lines = planner_.first_lines();
  if (!lines.ok()) return job_.refuse_input(lines.error());
  job_.screen.begin(job_.generation, job_.plan, restarts_.max_attempts(),
                    {[this, lines = *lines, plans = std::move(plans).value()] {
                       if (job_.phase.state() != JobState::kRunning || job_.was_started()) return;
                       for (const std::string& line : lines) job_.say(line);
                       start_with(plans);
                     },
                     [this](const Diagnostic& refusal) {
                       if (job_.phase.state() == JobState::kRunning && !job_.was_started())
                         job_.refuse({refusal}, LauncherReason::kRefused);
                     }});
}

void Job::start_with(const std::vector<HostPlan>& plans) {
  if (job_.request.joined != nullptr)
    job_.request.joined->begin_attempt(job_.generation, restarts_.max_attempts(), job_.plan);
  ranks_.begin();
  job_.started_at_ns = job_.job_started_at_ns = monotonic_ns();
  job_.events.started(job_.generation, restarts_.max_attempts(), job_.started_at_ns);
  for (std::size_t index = 0; index < plans.size(); ++index)
    job_.hosts.send(job_.plan.hosts[index].host_index, restarts_.start(plans[index]));
  Command not_needed;
  not_needed.mutable_stop();
  for (std::size_t index = 0; index < job_.hosts.size(); ++index)
    if (!job_.hosts[index].is_planned() && !job_.hosts[index].gone)
      job_.hosts.send(index, not_needed);
  feed_stdin();
}

void Job::feed_stdin() {
  std::vector<std::size_t> takers;
  if (job_.options.stdin_choice == "all") {
    for (const PlannedHost& planned : job_.plan.hosts) takers.push_back(planned.host_index);
  } else {
    takers.push_back(job_.workers[0].host);
  }
  const auto send = [this, takers](const std::string& bytes) {
    for (const std::size_t host : takers)
      if (!job_.hosts[host].lost) job_.hosts[host].session->send_input(bytes);
  };
  if (job_.options.stdin_choice == "none" || !StdinFeed::worth_forwarding()) return send("");
  StdinFeed::Handlers handlers;
  // As much as the slowest host takes.
  handlers.room = [this, takers] {
    std::uint64_t room = std::numeric_limits<std::uint64_t>::max();
    for (const std::size_t host : takers)
      if (!job_.hosts[host].lost) room = std::min(room, job_.hosts[host].session->input_room());
    return static_cast<std::size_t>(room);
  };
  handlers.bytes = send;
  stdin_feed_ = std::make_unique<StdinFeed>(job_.loop, handlers);
  stdin_feed_->start();
}

void Job::stop_workers(milliseconds grace) {
  bring_up_.stop_waiting();
  if (stdin_feed_) stdin_feed_->stop();
  ending_.stop(grace);
}

void Job::prepare_restart() {
  job_.screen.forget_generation();
  ending_.forget_stop();
  if (stdin_feed_) stdin_feed_->stop();
  // Events from now on belong to no worker; a host that is lost now is lost to the job.
  job_.workers.clear();
  bool has_changed = false;
  for (HostRecord& host : job_.hosts) {
    if (!host.is_planned()) continue;
    host.reported = false;
    has_changed |= host.gone.has_value();
  }
  if (has_changed) {
    const std::size_t first_before = job_.plan.hosts.front().host_index;
    if (!planner_.plan_without_the_gone()) return;
    if (job_.plan.hosts.front().host_index != first_before) {
      store_.open();
      bring_up_.ask_for_checks();
    }
  }
  store_.begin_generation(job_.generation + 1);
  pause_is_over_ = false;
  restart_timer_.expires_after(restarts_.pause());
  restart_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    pause_is_over_ = true;
    check_restart();
  });
  restart_due_ns_ = monotonic_ns() + std::chrono::nanoseconds(restarts_.pause()).count();
  limit_restart(restart_due_ns_ + kFirstReportNs);
}

// The restart may take as long as a start: names what is awaited, and ends the job at the limit.
void Job::limit_restart(std::int64_t until_ns) {
  const std::int64_t limit_ns =
      restart_due_ns_ + std::chrono::nanoseconds(job_.options.start_timeout).count();
  const std::int64_t next_ns = std::min(until_ns, limit_ns);
  restart_limit_timer_.expires_after(std::chrono::nanoseconds(next_ns - monotonic_ns()));
  restart_limit_timer_.async_wait(
      [this, next_ns, limit_ns](const boost::system::error_code& error) {
        if (error || job_.phase.state() != JobState::kRestarting) return;
        if (next_ns == limit_ns) return restart_is_late();
        const std::vector<std::string> awaited = restart_awaits();
        const std::string number = std::to_string(job_.generation + 2);
        for (std::size_t i = 0; i < std::min(awaited.size(), kMostAwaitedShown); ++i)
          job_.say("attempt " + number + " waits: " + awaited[i]);
        if (awaited.size() > kMostAwaitedShown)
          job_.say("attempt " + number + " waits for " +
                   std::to_string(awaited.size() - kMostAwaitedShown) + " answers more");
        limit_restart(limit_ns);
      });
}

std::vector<std::string> Job::restart_awaits() const {
  std::vector<std::string> awaited;
  if (store_.is_beginning())
    awaited.push_back("the job's store on " + store_.host_name() + " has not started the attempt");
  for (const HostRecord& host : job_.hosts) {
    if (!host.is_planned()) continue;
    if (host.opens_store) awaited.push_back(bring_up_.awaited_store(host));
    if (!host.checked) awaited.push_back(bring_up_.awaited_check(host));
  }
  if (job_.screen.is_beginning())
    awaited.push_back("the directory of --log-dir or --output does not respond");
  return awaited;
}

void Job::restart_is_late() {
  const std::vector<std::string> awaited = restart_awaits();
  Diagnostic late;
  late.id = "IVY-R022";
  late.what =
      "attempt " + std::to_string(job_.generation + 2) + " could not start in " + "--start-timeout";
  late.where = store_.host_name();
  for (const std::string& one : awaited) late.cause += (late.cause.empty() ? "" : "\n") + one;
  late.fix = "allow more time: --start-timeout; the kernel log of the host may name the cause";
  late.exit_code = kExitHostsNotUp;
  job_.refuse({std::move(late)}, LauncherReason::kHostsNotUp);
}

void Job::check_restart() {
  if (job_.phase.state() != JobState::kRestarting || !pause_is_over_ || store_.is_beginning() ||
      job_.screen.is_beginning())
    return;
  if (!std::all_of(job_.hosts.begin(), job_.hosts.end(),
                   [](const HostRecord& host) { return !host.is_planned() || host.is_ready(); }))
    return;
  job_.screen.begin(job_.generation + 1, job_.plan, restarts_.max_attempts(),
                    {[this] {
                       if (job_.phase.state() == JobState::kRestarting)
                         job_.phase.apply(JobEvent::kRestartDue);
                     },
                     [this](const Diagnostic& refusal) {
                       if (job_.phase.state() == JobState::kRestarting)
                         job_.refuse({refusal}, LauncherReason::kRefused);
                     }});
}

void Job::restart_workers() {
  restart_limit_timer_.cancel();
  ++job_.generation;
  losses_.begin_attempt();
  ranks_.begin();
  job_.started_at_ns = monotonic_ns();
  job_.events.started(job_.generation, restarts_.max_attempts(), job_.started_at_ns);
  // Before any host hears of it: who takes the job over must not be behind its hosts.
  if (job_.outlives_launcher()) takeover_.write_record();
  if (service_.socket() != nullptr) service_.socket()->attempt();
  if (job_.request.joined != nullptr)
    job_.request.joined->begin_attempt(job_.generation, restarts_.max_attempts(), job_.plan);
  std::vector<HostPlan> plans;
  if (planner_.is_new()) {
    Result<std::vector<HostPlan>> made = planner_.host_plans();
    if (!made.ok()) return job_.refuse_input(made.error());
    plans = std::move(made).value();
  }
  for (std::size_t index = 0; index < job_.plan.hosts.size(); ++index) {
    Command command = restarts_.start_again();
    if (!plans.empty()) *command.mutable_start_again()->mutable_plan() = std::move(plans[index]);
    job_.hosts.send(job_.plan.hosts[index].host_index, command);
  }
}

// Every host has reported or is lost: the attempt is over when its output is here too.
void Job::check_end() {
  const JobState state = job_.phase.state();
  if (state == JobState::kDone || !job_.hosts.all_reported()) return;
  if (!job_.screen.has_given_up() &&
      !job_.workers.has_all_output([this](std::size_t host) { return job_.hosts[host].lost; })) {
    if (job_.was_started()) job_.screen.await_reader();
    return;
  }
  const bool is_over = state == JobState::kStopping || state == JobState::kConfirming;
  const bool runs_again = is_over && restarts_.decide(preemption_.has_notice());
  job_.phase.apply(runs_again ? JobEvent::kGroupGone : JobEvent::kAllReported);
}

void Job::check_ready() {
  if (job_.phase.state() == JobState::kRestarting) return check_restart();
  bring_up_.check_ready();
}

HostSession::Handlers Job::session_handlers(std::size_t index) {
  HostSession::Handlers handlers;
  handlers.up = [this, index](const LinkUp& up) { bring_up_.up(index, up); };
  handlers.event = [this, index](const Event& event) { on_event(index, event); };
  handlers.output = [this, index](const link::OutputChunk& chunk) { ranks_.output(index, chunk); };
  handlers.failed = [this, index](const LinkDown& down) {
    if (takeover_.is_under_way()) return takeover_.host_failed(index, down);
    bring_up_.failed(index, down);
  };
  handlers.lost = [this, index](HostLoss loss, const RemoteText& message) {
    if (takeover_.is_under_way()) return takeover_.host_lost(index, loss, message);
    losses_.lost(index, loss, message);
  };
  handlers.progress = [this, index](const RemoteText& text) {
    // A transfer reports every percent; the log has its beginning.
    const std::string line = text.line();
    const std::string step = line.substr(0, line.find('('));
    const bool is_new = step.empty() || !job_.hosts[index].doing.line().starts_with(step);
    job_.hosts[index].doing = text;
    if (is_new) log::debug(job_.hosts[index].name() + ": " + line);
  };
  handlers.alive = [this, index](const link::Alive& alive) { on_alive(index, alive); };
  handlers.input_room = [this] {
    if (stdin_feed_) stdin_feed_->resume();
  };
  return handlers;
}

// A stuck host is reported and nothing ends because of it: it is not silent, and what it waits for
// may answer again.
void Job::on_alive(std::size_t index, const link::Alive& alive) {
  HostRecord& host = job_.hosts[index];
  const std::int64_t now = monotonic_ns();
  const bool is_late = alive.overdue_ns != 0 || alive.loop_silent_ns != 0;
  if (!is_late) {
    if (host.wait.reported_ns != 0)
      job_.say(host.name() + " no longer waits for " + host.wait.what.line() + ", after " +
               whole_seconds(now - host.wait.since_ns));
    host.wait = {};
    return;
  }
  const bool has_task = alive.overdue_ns != 0;
  host.wait.what =
      has_task ? RemoteText(alive.overdue) : RemoteText("its own supervisor, which is busy");
  if (host.wait.since_ns == 0)
    host.wait.since_ns =
        now - static_cast<std::int64_t>(has_task ? alive.overdue_ns : alive.loop_silent_ns);
  const std::int64_t waited_ns = now - host.wait.since_ns;
  if (waited_ns < std::max(kFirstReportNs, 2 * host.wait.reported_ns)) return;
  host.wait.reported_ns = waited_ns;
  job_.say(host.name() + " waits for " + host.wait.what.line() + ", " + whole_seconds(waited_ns));
}

void Job::watch_absences() {
  absence_timer_.expires_after(kHeartbeat);
  absence_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    // Before the start, BringUp tells who is awaited.
    for (std::size_t index = 0; index < job_.hosts.size(); ++index)
      if (!is_before_start(job_.phase.state())) check_absence(index);
    watch_absences();
  });
}

// Tells the user about a host that is not heard, before its lease is over. A supervisor on this
// host has no lease: the end of its socket would tell its end, so it is only stopped, and its
// workers run on. Once they have ended, it has to answer in time.
void Job::check_absence(std::size_t index) {
  HostRecord& host = job_.hosts[index];
  if (!host.session || !host.session->is_open() || !host.up || host.reported) return;
  const HostAbsence absence = host.session->absence();
  if (absence.ns < kFirstReportNs) {
    if (host.absence_reported_ns != 0) job_.say(host.name() + " is heard again");
    host.absence_reported_ns = 0;
    return;
  }
  if (absence.limit.count() == 0 && job_.phase.state() == JobState::kConfirming &&
      std::chrono::nanoseconds(absence.ns) > kStopPatience) {
    host.session->close();
    return losses_.lost(index, HostLoss::kSupervisor,
                        "it was silent for " + whole_seconds(absence.ns));
  }
  if (absence.ns < 2 * host.absence_reported_ns) return;
  host.absence_reported_ns = absence.ns;
  if (absence.limit.count() == 0)
    return job_.say(host.name() + ": its supervisor has been silent for " +
                    whole_seconds(absence.ns) +
                    "; is it stopped? (ps -C ivy-supervisor -o pid,stat,args)");
  job_.say(host.name() + ": nothing was heard for " + whole_seconds(absence.ns) +
           (absence.why.empty() ? "" : " (" + absence.why.line() + ")") +
           "; it is given up after " +
           whole_seconds(std::chrono::nanoseconds(absence.limit).count()));
}

void Job::on_event(std::size_t index, const Event& event) {
  if (event.has_taken_over()) return takeover_.host_taken_over(index, event.taken_over());
  if (takeover_.is_under_way()) return takeover_.defer(index, event);
  handle(index, event);
}

void Job::handle(std::size_t index, const Event& event) {
  switch (event.kind_case()) {
    case Event::kHelloOk:
      return bring_up_.greeted(index, event.hello_ok());
    case Event::kAddressChecked:
      if (bring_up_.address_checked(index, event.address_checked())) check_ready();
      return;
    case Event::kStoreOpened:
      if (store_.opened(index, event.store_opened())) check_ready();
      return;
    case Event::kStoreLost:
      return store_.lost(index, event.store_lost());
    case Event::kGenerationBegun:
      store_.begun(event.generation_begun());
      return check_restart();
    case Event::kStarted:
      if (ranks_.started(index, event.started()) && job_.takeover == 0) leave_foreground();
      return;
    case Event::kReport:
      return on_report(index, event.report());
    case Event::kNote:
      return on_note(index, event.note());
    case Event::kDeviceTrouble:
      return ranks_.device_trouble(index, event.device_trouble());
    case Event::kSignalled:
      return preemption_.step_signalled(event.signalled().signal(), true);
    case Event::kStartFailed:
    case Event::kExited:
    case Event::kStalled:
    case Event::kJaxServiceLost:
    case Event::kMpiLost:
    case Event::kMpiJoined:
    case Event::kNews:
    case Event::kOperations:
    case Event::kEvidencePart:
    case Event::kTakenOver:  // on_event() has taken this one out.
    case Event::KIND_NOT_SET:
      return ranks_.heard(index, event);
  }
}

void Job::on_report(std::size_t index, const Report& report) {
  HostRecord& host = job_.hosts[index];
  if (host.is_planned() && report.generation() != job_.generation) return;
  host.reported = true;
  job_.workers.host_reported(index);
  if (report.left_behind_count() > 0) {
    job_.left_behind.count += report.left_behind_count();
    job_.left_behind.hosts.push_back(host.name());
    for (const std::string& name : report.left_behind())
      ++job_.left_behind.names[RemoteText(name).line()];
  }
  for (const Leftover& leftover : report.leftovers())
    job_.unclean.push_back(host.name() + ": pid " + std::to_string(leftover.pid()) + " (" +
                           RemoteText(leftover.name()).line() +
                           ") cannot be killed: " + RemoteText(leftover.state()).line() + " in " +
                           RemoteText(leftover.waiting_in()).line());
  const auto is_listed = [&](const std::string& line) {
    return line.starts_with(host.name() + ": ");
  };
  if (!report.clean() && std::none_of(job_.unclean.begin(), job_.unclean.end(), is_listed))
    job_.unclean.push_back(host.name() +
                           ": its processes could not be read; its workers may still run");
  if (!report.reason().empty() && losses_.left(index, report.reason())) return;
  check_end();
}

void Job::on_note(std::size_t index, const Note& note) {
  const RemoteText text = note.text();
  if (note.store_stall()) {
    const Result<ctl::StoreDescription> store = service_.store_description();
    if (store.ok())
      return ranks_.say_stall("nothing has moved in the job's store",
                              RemoteText(explain_ranks(note.text(), *store)).lines());
  }
  job_.say((note.warning() ? "warning: " : "note: ") + job_.hosts[index].name() + ": " +
           (note.store_stall() ? "store: " : "") + text.line());
}

void Job::leave_foreground() {
  Detachment* const detachment = job_.request.detachment;
  // A job that is about to end does so in the foreground.
  if (detachment == nullptr || detachment->has_left() || job_.concluded) return;
  // A user who reads the parent's notice may call ivyctl at once, so the socket must exist.
  service_.open();
  if (job_.outlives_launcher()) {
    takeover_.write_record();
    takeover_.keep_record();
  }
  if (service_.socket() != nullptr) service_.socket()->keep_unheard();
  job_.screen.output().leave([detachment](int log_fd) { detachment->leave(log_fd); });
}

void Job::interrupt(int signal) {
  const std::string called = signal_name(signal);
  const JobState before = job_.phase.state();
  ++interrupts_;
  // Everything has ended; only the console still takes what was printed.
  if (before == JobState::kDone)
    return job_.screen.output().limit_finish(JobScreen::kInterruptedDrain);
  if (!job_.hosts.have_sessions()) return takeover_.give_up("interrupted by " + called);
  job_.end_because(LauncherReason::kInterrupted,
                   Diagnostic{.severity = Severity::kNote,
                              .id = "IVY-R003",
                              .what = "interrupted by " + called,
                              .exit_code = 128 + signal},
                   signal);
  if (ending_.awaits_only_output()) {
    job_.say(called + ": dropping the rest of the output");
    return ending_.give_up_output();
  }
  // A kill that is under way for another reason is what the first one asks for.
  if (before == JobState::kKilling && interrupts_ == 1) return;
  job_.phase.apply(JobEvent::kInterrupted);
  const JobState state = job_.phase.state();
  if (state != JobState::kStopping && state != JobState::kKilling) return;
  if (!job_.was_started()) {
    job_.say(called + ": " + job_.stopping_text() + "; again to exit now");
  } else if (state == JobState::kKilling) {
    job_.say(called + ": killing the workers; again to exit now");
  } else if (before != JobState::kStopping) {
    const auto grace_s =
        std::chrono::duration_cast<std::chrono::seconds>(job_.grace(kGraceByRequest));
    job_.say(called + ": " + job_.stopping_text() + ", KILL follows in " +
             std::to_string(grace_s.count()) + " s; " +
             (signal == SIGINT ? "press Ctrl-C" : "send it") + " again to kill now");
  }
}

void Job::suspend(std::function<void()> ready) {
  job_.signal_workers(SIGSTOP);
  milliseconds longest = kPauseLimit;
  bool has_others = false;
  for (HostRecord& host : job_.hosts) {
    has_others |= !host.on_this_host;
    if (!host.session) continue;
    host.session->pause();
    longest = std::max(longest, host.session->lease());
  }
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(longest).count();
  if (has_others)
    job_.screen.note("suspended; the other hosts stop the job if it is not resumed within " +
                     std::to_string(minutes) + " min");
  // The loop needs a moment to hand the message to the links, and longer for a link that is slow or
  // is being redialled. Still, Ctrl-Z must not seem to do nothing.
  await_paused(std::move(ready), monotonic_ns() + 2 * kSecondNs);
}

void Job::await_paused(std::function<void()> ready, std::int64_t until_ns) {
  pause_timer_.expires_after(milliseconds(100));
  pause_timer_.async_wait([this, ready = std::move(ready),
                           until_ns](const boost::system::error_code& error) mutable {
    if (error) return;
    const auto has_paused = [](const HostRecord& host) {
      return !host.session || host.session->has_paused();
    };
    if (monotonic_ns() >= until_ns || std::all_of(job_.hosts.begin(), job_.hosts.end(), has_paused))
      return ready();
    await_paused(std::move(ready), until_ns);
  });
}

void Job::resume() {
  for (HostRecord& host : job_.hosts)
    if (host.session) host.session->resume();
  job_.signal_workers(SIGCONT);
}

void Job::fail(const std::string& what) {
  ++failures_;
  const Diagnostic reason{.id = "IVY-X001",
                          .what = "internal error in ivyrun: " + what,
                          .fix =
                              "the job was stopped cleanly; if memory and limits (ulimit -a) "
                              "suffice, report this",
                          .exit_code = kExitInternal};
  job_.end_because(LauncherReason::kInternal, reason);
  if (job_.phase.state() == JobState::kDone) return ending_.fail(reason);
  if (!job_.hosts.have_sessions()) return takeover_.give_up(what);
  job_.phase.apply(failures_ == 1 ? JobEvent::kTimeUp : JobEvent::kInterrupted);
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
  write_at_once("ivyrun: error[IVY-X001]: ivyrun keeps failing and exits: " + *last + "\n");
}

}  // namespace ivy
