// SPDX-License-Identifier: Apache-2.0
// Organised as: start(); act(), which carries out the table's actions; host_event() and handle(),
// which pass each message of a host to its part; then what Job does itself: stuck and silent hosts
// (host_alive(), check_absence()), the background (leave_foreground()), signals (interrupt(),
// suspend()), exceptions (handle_exception(), run_to_the_end()). Sessions call the
// HostSessionEvents, the parts call act(), check_end() and exit() through JobPhase and JobActions,
// and main calls the rest.
#include "launcher/job/job.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <utility>

#include "launcher/hang/rank_names.h"
#include "launcher/links/transport_context.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// A host that is silent or stuck is reported after this time, and again whenever the time has
// doubled.
constexpr std::int64_t kFirstReportNs = 4 * kSecondNs;

std::string whole_seconds(std::int64_t ns) { return std::to_string(ns / kSecondNs) + " s"; }

}  // namespace

using std::chrono::milliseconds;

// How often to check that standard output still has a reader.
static constexpr std::chrono::seconds kReaderCheck{1};

Job::Job(boost::asio::io_context& loop, JobRequest request)
    : job_(loop, std::move(request), *this),
      planner_(job_),
      store_(job_),
      progress_(job_),
      preemption_(job_),
      ranks_(job_, preemption_),
      stdin_feed_(job_),
      gate_(job_),
      drill_(job_, *this),
      bring_up_(job_, planner_, store_, progress_, ranks_, stdin_feed_, gate_, drill_),
      growth_(job_, planner_, bring_up_, store_),
      losses_(job_, planner_, bring_up_, ranks_, growth_),
      notices_(job_, preemption_, losses_),
      service_(job_, ranks_),
      record_(job_, service_),
      restarts_(job_, planner_, store_, progress_, bring_up_, gate_, ranks_, losses_, growth_,
                service_, record_),
      ending_(job_, bring_up_, stdin_feed_, preemption_, ranks_, losses_, notices_, restarts_,
              service_, record_, drill_),
      takeover_(job_, store_, ranks_, losses_, service_, record_, restarts_, *this),
      timeout_timer_(loop),
      absence_timer_(loop),
      reader_timer_(loop),
      pause_timer_(loop) {}

Job::~Job() = default;

void Job::start(std::function<void(int, int)> on_finished) {
  on_finished_ = std::move(on_finished);
  JoinedNodes* const joined = job_.request.joined;
  job_.screen.open(*this, joined == nullptr ? nullptr : &joined->remote_output(*this));
  for (const std::string& note : job_.options.notes) job_.screen.note("note: " + note);
  transports_ = std::make_shared<TransportContext>(job_.loop, job_.options, job_.request.node,
                                                   job_.request.make_agent_link);
  if (joined != nullptr) transports_->set_joined_hosts(joined->hosts());
  transports_->set_events(*this);
  watch_absences();
  if (job_.takeover != 0) return takeover_.begin();
  job_.opened_unix_ms = wall_ms();
  dial_hosts();
  bring_up_.start(transports_);
  if (job_.hosts.may_grow()) growth_.start(transports_, *this);
  notices_.start();
  watch_reader();
  service_.schedule();
}

void Job::dial_hosts() {
  bring_up_.dial(transports_, *this);
  start_timeout();
}

void Job::output_consumed(int host_index, std::uint64_t bytes) {
  HostSession* const session = job_.hosts[static_cast<std::size_t>(host_index)].session.get();
  if (session != nullptr && session->is_open()) session->grant(bytes);
}

// A reader that has gone away (`| head`) stops the job like an expired --timeout: kStopRequired is
// the event for a reason of the launcher itself and stops the workers with the short grace.
// end_because() rules out a restart.
void Job::output_closed() {
  job_.end_because(
      LauncherReason::kOutputClosed,
      Diagnostic{.severity = Severity::kNote,
                 .id = "IVY-O001",
                 .what = "stdout was closed by the reader (for example `| head`); job stopped",
                 .exit_code = kExitOutputClosed});
  job_.phase.apply(JobEvent::kStopRequired);
}

// Checks periodically whether standard output still has a reader. Otherwise ranks that print
// nothing would run on after `| head` or an ssh client has exited.
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
    job_.phase.apply(JobEvent::kStopRequired);
  });
}

// Carries out an action of the table in job_state.cc.
void Job::act(JobAction action) {
  switch (action) {
    case JobAction::kNothing:
      return;
    case JobAction::kContinueBringUp:
      return bring_up_.host_left_out();
    case JobAction::kCollectEvidence:
      return ending_.collect_evidence();
    case JobAction::kStopAfterFailure:
      return ending_.stop(job_.grace(kGraceAfterFailure));
    case JobAction::kStopByRequest:
      return ending_.stop(job_.grace(kGraceByRequest));
    case JobAction::kKill:
      return ending_.stop(milliseconds(0));
    case JobAction::kConfirm:
      return ending_.confirm();
    case JobAction::kPrepareRestart:
      return restarts_.prepare();
    case JobAction::kFinish:
      cancel_timers();
      return ending_.finish();
    case JobAction::kLeaveNow:
      cancel_timers();
      return ending_.exit_now();
  }
}

void Job::exit(int exit_code, int raise_signal) {
  cancel_timers();
  if (job_.input_taken) stdin_feed_.restore_offset(*job_.input_taken);
  finish_transports(transports_,
                    [this, exit_code, raise_signal] { on_finished_(exit_code, raise_signal); });
}

void Job::cancel_timers() {
  timeout_timer_.cancel();
  absence_timer_.cancel();
  reader_timer_.cancel();
  growth_.stop();
  notices_.stop();
  drill_.stop();
}

// An event of a host. While a takeover waits for other hosts, events are deferred.
void Job::host_event(std::size_t index, const Event& event) {
  if (takeover_.is_under_way() && !event.has_taken_over()) return takeover_.defer(index, event);
  handle(index, event);
}

// Passes an event to the part that handles it; the only switch over the messages of hosts.
void Job::handle(std::size_t index, const Event& event) {
  switch (event.kind_case()) {
    // Bring-up, and the hosts' part of a restart or a takeover.
    case Event::kHelloOk:
      bring_up_.greeted(index, event.hello_ok());
      if (job_.hosts[index].is_returning) growth_.greeted(index);
      return;
    case Event::kAddressChecked:
      if (bring_up_.address_checked(index, event.address_checked())) host_is_ready();
      return;
    case Event::kStoreOpened:
      if (store_.opened(index, event.store_opened())) host_is_ready();
      return;
    case Event::kGenerationBegun:
      store_.begun(event.generation_begun());
      return restarts_.notify();
    case Event::kTakenOver:
      return takeover_.host_taken_over(index, event.taken_over());
    // While a generation runs.
    case Event::kStarted:
      if (ranks_.started(index, event.started()) && job_.takeover == 0) leave_foreground();
      return;
    case Event::kStartFailed:
      return ranks_.start_failed(index, event.start_failed());
    case Event::kExited:
      return ranks_.exited(index, event.exited());
    case Event::kStalled:
      return ranks_.stalled(index, event.stalled());
    case Event::kDeviceFaults:
      return ranks_.device_faults(index, event.device_faults());
    case Event::kJaxServiceLost:
      return ranks_.jax_service_lost(index, event.jax_service_lost());
    case Event::kMpiJoined:
      return ranks_.mpi().joined(index, event.mpi_joined());
    case Event::kMpiLost:
      return ranks_.mpi().lost(index, event.mpi_lost());
    case Event::kRankUpdates:
      return ranks_.relay().on_updates(index, event.rank_updates());
    case Event::kOperations:
      return ranks_.relay().on_operations(index, event.operations());
    case Event::kEvidencePart:
      return ranks_.evidence().on_part(index, event.evidence_part());
    case Event::kStoreLost:
      return store_.lost(index, event.store_lost());
    // The end.
    case Event::kReport:
      return ending_.take_report(index, event.report());
    // At any time.
    case Event::kSignalled:
      return preemption_.step_signalled(event.signalled().signal(), true);
    case Event::kTaskOutput:
      return host_task_output(index, event.task_output());
    case Event::kHostNotice:
      return notices_.take(index, event.host_notice());
    case Event::kNote:
      return on_note(index, event.note());
    case Event::KIND_NOT_SET:
      return;
  }
}

void Job::host_task_output(std::size_t index, const TaskOutput& output) {
  if (output.task() == TASK_FETCH) return ending_.fetch().take(index, output);
  if (output.task() == TASK_CHECK) return gate_.take(index, output);
  if (output.task() == TASK_PROGRESS) return progress_.take(index, output);
  if (output.task() == TASK_DRILL) {
    drill_.take(index, output);
    return bring_up_.notify();
  }
  bring_up_.task_output(index, output);
}

// Bring-up and a restart wait for the same answers; only one of them is under way.
void Job::host_is_ready() {
  bring_up_.notify();
  restarts_.notify();
}

void Job::host_failed(std::size_t index, const LinkDown& down) {
  if (takeover_.is_under_way()) return takeover_.host_failed(index, down);
  if (job_.hosts[index].is_returning) return growth_.failed(index, down.message);
  bring_up_.failed(index, down);
}

void Job::host_lost(std::size_t index, HostLoss loss, const RemoteText& why) {
  if (takeover_.is_under_way()) return takeover_.host_lost(index, loss, why);
  if (job_.hosts[index].is_returning) return growth_.failed(index, why);
  losses_.lost(index, loss, why);
}

void Job::host_progress(std::size_t index, const LinkStep& step) {
  LinkStep& doing = job_.hosts[index].doing;
  // A transfer reports each percent. The debug log gets only the step, which precedes the figures.
  const bool is_new = !step.upload && !(step.text == doing.text);
  doing = step;
  if (is_new) log::debug(job_.hosts[index].name() + ": " + step.text.line());
}

// Reports a stuck host: its heartbeats arrive, but a task there is overdue. Nothing ends because of
// it, since it may recover.
void Job::host_alive(std::size_t index, const session::Alive& alive) {
  HostRecord& host = job_.hosts[index];
  const std::int64_t now = monotonic_ns();
  const bool is_late = alive.overdue_ns != 0 || alive.loop_silent_ns != 0;
  if (!is_late) {
    if (host.wait.reported_ns != 0)
      job_.print(host.name() + " no longer waits for " + host.wait.what.line() + ", after " +
                 whole_seconds(now - host.wait.since_ns));
    host.wait = {};
    return;
  }
  const bool has_task = alive.overdue_ns != 0;
  host.wait.what =
      has_task ? RemoteText(alive.overdue) : RemoteText("its supervisor, which is busy");
  if (host.wait.since_ns == 0)
    host.wait.since_ns =
        now - static_cast<std::int64_t>(has_task ? alive.overdue_ns : alive.loop_silent_ns);
  const std::int64_t waited_ns = now - host.wait.since_ns;
  if (waited_ns < std::max(kFirstReportNs, 2 * host.wait.reported_ns)) return;
  host.wait.reported_ns = waited_ns;
  job_.print(host.name() + " waits for " + host.wait.what.line() + ", " + whole_seconds(waited_ns));
}

void Job::watch_absences() {
  absence_timer_.expires_after(kHeartbeat);
  absence_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    // Before the start, BringUp reports the hosts that are awaited.
    for (std::size_t index = 0; index < job_.hosts.size(); ++index)
      if (!is_before_start(job_.phase.state())) check_absence(index);
    watch_absences();
  });
}

// Reports a silent host before its lease expires; HostSession decides that it is lost. A supervisor
// on this host has no lease: if it had exited, its socket would be closed, so it is only suspended,
// and its workers run on. Once its workers have exited, it has kStopTimeout to report.
void Job::check_absence(std::size_t index) {
  HostRecord& host = job_.hosts[index];
  if (!host.session || !host.session->is_open() || !host.up || host.reported) return;
  const HostAbsence absence = host.session->absence();
  if (absence.ns < kFirstReportNs) {
    if (host.absence_reported_ns != 0) job_.print(host.name() + " responds again");
    host.absence_reported_ns = 0;
    return;
  }
  // No limit: the supervisor is on this host.
  if (absence.limit.count() == 0 && job_.phase.state() == JobState::kConfirming &&
      std::chrono::nanoseconds(absence.ns) > kStopTimeout) {
    host.session->close();
    return losses_.lost(index, HostLoss::kSupervisor,
                        "it did not respond for " + whole_seconds(absence.ns));
  }
  if (absence.ns < 2 * host.absence_reported_ns) return;
  host.absence_reported_ns = absence.ns;
  NamedFailure silence{.kind = NamedFailure::Kind::kSilence, .host = host.name()};
  job_.faults.named(silence, monotonic_ns());
  if (absence.limit.count() == 0)
    return job_.print(host.name() + ": its supervisor has not responded for " +
                      whole_seconds(absence.ns) +
                      "; is it stopped? (ps -C ivy-supervisor -o pid,stat,args)");
  job_.print(host.name() + ": no response for " + whole_seconds(absence.ns) +
             (absence.why.empty() ? "" : " (" + absence.why.line() + ")") +
             "; the host is considered lost after " +
             whole_seconds(std::chrono::nanoseconds(absence.limit).count()));
}

void Job::on_note(std::size_t index, const Note& note) {
  const RemoteText text = note.text();
  if (note.store_stall()) {
    const Result<ctl::StoreDescription> store = service_.describe_store();
    if (store.ok())
      return ranks_.report_stall("there is no progress in the job's store",
                                 RemoteText(explain_ranks(note.text(), *store)).lines());
  }
  job_.print((note.warning() ? "warning: " : "note: ") + job_.hosts[index].name() + ": " +
             (note.store_stall() ? "store: " : "") + text.line());
}

void Job::taken_over() {
  check_end();
  // A job that has ended, or is about to, prints its summary in the foreground.
  if (job_.phase.state() == JobState::kRunning && job_.workers.running() > 0) leave_foreground();
}

// --detach: moves a running job to the background.
void Job::leave_foreground() {
  Detachment* const detachment = job_.request.detachment;
  // A job that is about to end does so in the foreground.
  if (detachment == nullptr || detachment->has_left() || job_.is_muted) return;
  // A user who reads the parent's notice may call ivyctl immediately, so the socket must exist.
  service_.open();
  if (job_.outlives_launcher()) {
    record_.write();
    record_.keep();
  }
  if (service_.socket() != nullptr) service_.socket()->keep_undelivered();
  job_.screen.output().leave([detachment](int log_fd) { detachment->leave(log_fd); });
}

void Job::interrupt(int signal) {
  const std::string called = signal_name(signal);
  const JobState before = job_.phase.state();
  ++job_.interrupts;
  // All workers have exited.
  if (before == JobState::kDone && ending_.fetch().is_under_way())
    return ending_.fetch().stop("it was stopped by " + called);
  // Only the console is still being written to.
  if (before == JobState::kDone)
    return job_.screen.output().limit_finish(JobScreen::kInterruptedDrain);
  // A takeover has no sessions before its files are open.
  if (!job_.hosts.have_sessions()) return takeover_.give_up("interrupted by " + called);
  job_.end_because(LauncherReason::kInterrupted,
                   Diagnostic{.severity = Severity::kNote,
                              .id = "IVY-R003",
                              .what = "interrupted by " + called,
                              .exit_code = 128 + signal},
                   signal);
  const bool is_ending = before == JobState::kStopping || before == JobState::kConfirming;
  if (is_ending && progress_.is_reading()) {
    job_.print(called + ": the job ends without another attempt");
    return job_.phase.check_end();
  }
  if (ending_.awaits_only_output()) {
    job_.print(called + ": discarding the rest of the output");
    return ending_.give_up_output();
  }
  // The workers are being killed for another reason, so the first signal has nothing to add.
  if (before == JobState::kKilling && job_.interrupts == 1) return;
  job_.phase.apply(JobEvent::kInterrupted);
  const JobState state = job_.phase.state();
  if (state != JobState::kStopping && state != JobState::kKilling) return;
  if (!job_.was_started()) {
    job_.print(called + ": " + job_.stopping_text() + "; again to exit now");
  } else if (state == JobState::kKilling) {
    job_.print(called + ": killing the workers; again to exit now");
  } else if (before != JobState::kStopping) {
    const auto grace_s =
        std::chrono::duration_cast<std::chrono::seconds>(job_.grace(kGraceByRequest));
    job_.print(called + ": " + job_.stopping_text() + ", KILL follows in " +
               std::to_string(grace_s.count()) + " s; " +
               (signal == SIGINT ? "press Ctrl-C" : "send it") + " again to kill now");
  }
}

// Another node's pod may be deleted while this one stays.
void Job::nodes_interrupted(int signal) {
  AllocationWatch* const watch = job_.request.allocation_end;
  if (signal == SIGTERM && watch != nullptr && watch->is_pod()) return watch->pod_terminates();
  interrupt(signal);
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
  // The loop needs a moment to hand the messages to the links, and longer if a link is slow or is
  // being redialled. The limit keeps Ctrl-Z from seeming to do nothing.
  await_paused(std::move(ready), monotonic_ns() + 2 * kSecondNs);
}

// Polls until all hosts have been told, or until the limit.
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

void Job::handle_exception(const std::string& what) {
  ++failures_;
  const Diagnostic reason{.id = "IVY-X001",
                          .what = "internal error in ivyrun: " + what,
                          .fix =
                              "the job was stopped cleanly; if memory and limits (ulimit -a) "
                              "suffice, report this as a bug",
                          .exit_code = kExitInternal};
  job_.end_because(LauncherReason::kInternal, reason);
  if (job_.phase.state() == JobState::kDone) return ending_.handle_exception(reason);
  if (!job_.hosts.have_sessions()) return takeover_.give_up(what);
  job_.phase.apply(failures_ == 1 ? JobEvent::kStopRequired : JobEvent::kInterrupted);
}

void run_to_the_end(boost::asio::io_context& loop, Job& job) {
  // Limit of exceptions: beyond it nothing can be trusted, and the hosts stop what is left when
  // their leases expire.
  constexpr int kMaxFailures = 8;
  std::optional<std::string> last;
  for (int failures = 0; failures < kMaxFailures; ++failures) {
    try {
      // Inside `try`, because ending the job may throw, too.
      if (last) job.handle_exception(*last);
      loop.run();
      return;
    } catch (const std::exception& error) {
      last = error.what();
    }
  }
  job.output().status_line("");
  // The caller exits now, so queued output would be lost.
  write_at_once("ivyrun: error[IVY-X001]: ivyrun keeps failing and exits: " + *last + "\n");
}

}  // namespace ivy
