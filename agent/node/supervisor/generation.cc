// SPDX-License-Identifier: Apache-2.0
// The functions are in the order of the diagram in generation.h: start, exits, single ranks, stop,
// report, exit of the supervisor.
#include "agent/node/supervisor/generation.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <map>
#include <set>
#include <utility>

#include "agent/node/spawn/cgroup.h"
#include "agent/node/spawn/choose_containment.h"
#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// More workers than any host can use; each costs five descriptors here. The launcher's plan rejects
// them with a message (launcher/plan/plan.cc).
constexpr int kMaxWorkers = 4096;
// The report names at most this many of the processes that outlived the workers.
constexpr std::size_t kNamedProcesses = 8;
// Times of the notes about processes for which the end waits (--linger).
constexpr std::uint64_t kLingerNoteNs = 4 * kNanosPerSecond;
constexpr std::uint64_t kLingerRepeatNs = 60 * kNanosPerSecond;

// Returns the cgroup that the warden verified, or an empty string on failure or after 100 ms.
std::string read_verified_cgroup(int pipe) {
  constexpr int kTimeoutMs = 100;
  pollfd waited{pipe, POLLIN, 0};
  if (pipe < 0 || poll(&waited, 1, kTimeoutMs) != 1) return {};
  std::array<char, PIPE_BUF> text{};
  const ssize_t length = read(pipe, text.data(), text.size());
  return described_cgroup({text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))});
}

// Replaces the values of these variables in the plan, or adds them.
void change_environment(HostPlan& plan,
                        const google::protobuf::RepeatedPtrField<Variable>& changes) {
  auto& variables = *plan.mutable_environment();
  for (const Variable& changed : changes) {
    const auto known = std::find_if(variables.begin(), variables.end(), [&](const Variable& other) {
      return other.name() == changed.name();
    });
    *(known != variables.end() ? &*known : variables.Add()) = changed;
  }
}

// Returns the last event of a generation that this host does not start.
Event empty_report(std::uint32_t generation, bool is_clean) {
  Event event;
  event.mutable_report()->set_generation(generation);
  event.mutable_report()->set_clean(is_clean);
  return event;
}

using Parents = std::map<pid_t, pid_t>;

// Returns true if the process is one of `leaders`, below one of them, or, if its parents have
// exited, still in a leader's process group.
bool belongs_to(const std::set<pid_t>& leaders, const Parents& parents, pid_t pid) {
  if (leaders.contains(getpgid(pid))) return true;
  std::set<pid_t> seen;  // Guards against cycles: the table is not an atomic snapshot.
  for (auto at = parents.find(pid); at != parents.end() && seen.insert(at->first).second;
       at = parents.find(at->second)) {
    if (leaders.contains(at->first)) return true;
  }
  return false;
}

// Tells the warden that the supervisor is the last process of the job. Returns false if another
// descendant is left, which the warden then kills.
bool send_exit_notice(int pipe) {
  siginfo_t info{};
  if (pipe < 0 || waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD)
    return false;
  return write(pipe, "f", 1) == 1;
}

// Returns true if workers of the plan listen on ports that ivyrun has reserved. Some scripts
// (LightGBM's and XGBoost's) do so without SO_REUSEADDR, which fails while the port is reserved.
bool has_listening_scripts(const HostPlan& plan) {
  return std::any_of(plan.workers().begin(), plan.workers().end(), [](const WorkerSpec& spec) {
    if (spec.app().every_rank_is_client()) return true;
    return std::any_of(
        spec.environment().begin(), spec.environment().end(),
        [](const Variable& variable) { return variable.name() == "IVY_LISTEN_PORT"; });
  });
}

}  // namespace

std::unique_ptr<Containment> make_containment_for(const SupervisorStart& start) {
  return make_containment({.job_id = start.job_id,
                           .host = start.host,
                           .supervisor = getpid(),
                           .warden = start.warden_pid,
                           .proved_cgroup = read_verified_cgroup(start.containment_fd),
                           .in_step = start.step_task != 0});
}

Generation::Generation(SupervisorContext& context, const Lease& lease, CommandChannel& channel,
                       ControlServer& control, EventSender& events, JobStore& store,
                       HostTasks& tasks, HostContainer& container, NoticeWatch& notices)
    : context_(context),
      lease_(lease),
      channel_(channel),
      control_(control),
      events_(events),
      store_(store),
      tasks_(tasks),
      container_(container),
      notices_(notices),
      devices_(context, *this),
      workers_(context, channel, control, container, ending_, *this),
      mpi_(context, workers_),
      jax_(context),
      replacement_timer_(context.loop),
      ending_timer_(context.loop) {}

void Generation::take_own_files(HostWorkers::OwnFiles files) {
  mpi_.set_has_pmix(files.has_pmix);
  workers_.take_own_files(std::move(files));
}

bool Generation::is_idle() const {
  return ending_.phase() == EndingPhase::kIdle || ending_.reported();
}

// -- Start

void Generation::start(const Start& request) {
  const HostPlan& plan = request.plan();
  finishes_when_clean_ = request.is_last();
  max_restarts_ = request.max_restarts();
  last_generation_ = request.last_generation();
  const bool has_workers = !workers_.all().empty();
  const bool is_invalid = plan.arguments().empty() || plan.workers_size() > kMaxWorkers;
  if (has_workers && !is_invalid && plan.generation() == workers_.generation()) return;
  // Answered rather than disconnected: the launcher never sends a received frame again.
  if (is_invalid || has_workers || ending_.stopping()) return reject_start(plan, plan.generation());
  start_group(plan);
}

void Generation::start_again(const StartAgain& request) {
  const bool has_workers = !workers_.all().empty();
  if (has_workers && request.generation() == workers_.generation()) return;
  HostPlan plan = request.has_plan() ? request.plan() : workers_.plan();
  // Nothing may start next to processes that could not be killed, or after this host had a reason
  // to stop.
  const bool has_leftovers = events_.outcome().has_leftovers();
  const bool is_proved_empty = ending_.reported() && !has_leftovers && stop_reason_.empty();
  const bool is_too_large = request.plan().workers_size() > kMaxWorkers;
  if (!has_workers || request.generation() < workers_.generation() || !is_proved_empty ||
      is_too_large) {
    reject_start(plan, request.generation());
    return events_.send(empty_report(request.generation(), !has_leftovers));
  }
  forget_generation();
  finishes_when_clean_ = request.is_last();
  plan.set_generation(request.generation());
  change_environment(plan, request.environment());
  // The last generation has read some of the input, and part of an input would mislead the program.
  for (WorkerSpec& spec : *plan.mutable_workers()) spec.set_standard_input(false);
  next_plan_ = std::move(plan);
  devices_.await_memory(std::nullopt, {});
}

void Generation::start_allowed(std::optional<std::uint32_t> rank) {
  if (!rank) return start_group(std::exchange(next_plan_, {}));
  const auto due = awaiting_devices_.extract(*rank);
  if (due.empty()) return;
  workers_.start_again(*rank, due.mapped());
  check_soon();
}

void Generation::start_given_up(std::optional<std::uint32_t> rank) {
  if (rank) {
    awaiting_devices_.erase(*rank);
    return reject_rank(*rank, workers_.generation());
  }
  const HostPlan plan = std::exchange(next_plan_, {});
  reject_start(plan, plan.generation());
  events_.send(empty_report(plan.generation(), true));
}

void Generation::start_group(const HostPlan& plan) {
  // Not earlier: another program could take a port that is released.
  if (has_listening_scripts(plan)) context_.ports.workers.clear();
  HostPlan with_stacks = plan;
  mpi_.begin(with_stacks);
  replacement_timer_.cancel();
  continues_without_rank_ = plan.on_failure() != FAILURE_ENDS_ALL;
  replacements_.begin(plan.on_failure() == FAILURE_IS_REPLACED);
  awaiting_devices_.clear();
  workers_.start(with_stacks);
  jax_.begin(with_stacks, workers_.group().environment);
  ending_.workers_started(plan.linger_ms() * kNanosPerMilli);
  check_soon();
  devices_.begin(plan.generation());
}

// Called after its Report was sent: no process, open pipe or byte of it is left here.
void Generation::forget_generation() {
  // A cgroup is not used again after cgroup.kill: Linux 6.18 immediately kills processes that are
  // later started into it from outside.
  context_.containment->remove();
  context_.containment = make_containment_for(context_.start);
  store_.spare_again();
  tasks_.spare_again();
  container_.spare_again();
  notices_.spare_again();
  workers_.spare_preload();
  workers_.forget();
  boost::asio::post(context_.loop, [this] { context_.containment->settle(); });
  ending_.begin_again();
  ending_timer_.cancel();
  is_proved_empty_ = false;
  has_named_killed_ = false;
  linger_noted_ns_ = 0;
  events_.forget_generation();
}

void Generation::reject_start(const HostPlan& plan, std::uint32_t generation) {
  for (const WorkerSpec& spec : plan.workers()) reject_rank(spec.rank(), generation);
}

void Generation::reject_rank(std::uint32_t rank, std::uint32_t generation) {
  Event event;
  StartFailed* failed = event.mutable_start_failed();
  failed->set_generation(generation);
  failed->set_rank(rank);
  failed->set_error(ECANCELED);
  failed->set_step("start");
  failed->set_at_ns(monotonic_ns());
  events_.send(event);
}

// -- Exits

// As a subreaper this process inherits every orphan of the job. Reaping must not take a worker's
// status, so each child is identified first.
void Generation::reap_children() {
  workers_.collect_in_order();
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    if (Worker* const worker = workers_.find(info.si_pid); worker != nullptr) {
      workers_.collect(*worker);
      if (is_alive(worker->state())) break;
      continue;
    }
    if (workers_.is_starting(info.si_pid)) {
      must_reap_ = true;
      break;
    }
    int status = 0;
    const pid_t reaped = waitpid(info.si_pid, &status, WNOHANG);
    if (reaped <= 0) continue;
    control_.child_reaped(reaped, exit_status_from_wait(info.si_code, info.si_status));
    store_.reaped(reaped, status);
    tasks_.reaped(reaped, status);
    mpi_.reaped(reaped, status);
    jax_.reaped(reaped, status);
    workers_.preload_reaped(reaped);
    devices_.reaped(reaped);
    container_.reaped(reaped);
    notices_.reaped(reaped);
  }
  if (ending_.phase() != EndingPhase::kIdle) check_soon();
}

void Generation::tick(std::uint64_t now_ns, std::uint64_t elapsed_ns) {
  if (std::exchange(must_reap_, false)) reap_children();
  workers_.tick(now_ns, elapsed_ns);
  mpi_.tick(now_ns);
  report_linger(now_ns);
}

// --linger: names the processes that the end of the job waits for, after 4 s and each minute.
void Generation::report_linger(std::uint64_t now_ns) {
  const std::optional<Ending::Linger> linger = ending_.linger();
  if (!linger || !context_.containment || now_ns < linger->since_ns + kLingerNoteNs) return;
  if (linger_noted_ns_ != 0 && now_ns < linger_noted_ns_ + kLingerRepeatNs) return;
  const std::vector<JobProcess> left = context_.containment->members();
  if (left.empty() || now_ns >= linger->until_ns) return;
  linger_noted_ns_ = now_ns;
  std::string names;
  for (std::size_t i = 0; i < std::min(left.size(), kNamedProcesses); ++i)
    names += (i == 0 ? "" : ", ") + left[i].name;
  const std::string whose = workers_.all().size() == 1
                                ? "rank " + std::to_string(workers_.all().front()->rank())
                                : "ranks";
  Event event;
  event.mutable_note()->set_text(
      "waiting for " + std::to_string(left.size()) +
      (left.size() == 1 ? " process that " : " processes that ") + whose + " left behind (" +
      names + (left.size() > kNamedProcesses ? ", ..." : "") + "), " +
      std::to_string((linger->until_ns - now_ns + kNanosPerSecond - 1) / kNanosPerSecond) +
      " s left (--linger); Ctrl-C ends the wait");
  events_.send(event);
}

void Generation::worker_exited(const Worker& worker) {
  const bool has_failed = !worker.exit_status().is_success();
  if (has_failed) devices_.query_before_report();
  if (ending_.stopping() || !continues_without_rank_) return;
  store_.rank_exited(worker.rank(), worker.rejoins());
  if (has_failed) replacements_.failed(worker.rank());
}

// -- A single rank starts again

void Generation::replace_worker(const ReplaceWorker& request) {
  if (request.generation() != workers_.generation()) return;
  if (request.abandon()) {
    replacements_.abandon(request.rank());
    return check_soon();
  }
  const std::uint64_t due_ns = monotonic_ns() + request.pause_ms() * kNanosPerMilli;
  if (!replacements_.order({request.rank(), request.rejoins(), due_ns}))
    return reject_rank(request.rank(), workers_.generation());
  check_soon();
}

// Starts the replacements that are due, once the output of their last processes has ended.
void Generation::start_replacements() {
  if (!replacements_.awaits()) return;
  const std::uint64_t now_ns = monotonic_ns();
  const auto is_finished = [this](std::uint32_t rank) { return workers_.is_finished(rank); };
  for (const Replacements::Ordered& due : replacements_.take_due(now_ns, is_finished))
    await_devices(due);
  const auto next_ns = replacements_.next_due_ns();
  // If the time of a replacement has come, it waits for its predecessor's output, whose end causes
  // another check.
  if (!next_ns || *next_ns <= now_ns) return;
  replacement_timer_.expires_after(std::chrono::nanoseconds(*next_ns - now_ns));
  replacement_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) check_soon();
  });
}

void Generation::await_devices(const Replacements::Ordered& due) {
  std::vector<std::string> devices = workers_.own_devices(due.rank);
  if (devices.empty()) return workers_.start_again(due.rank, due.rejoins);
  awaiting_devices_[due.rank] = due.rejoins;
  devices_.await_memory(due.rank, std::move(devices));
}

// -- Stop

void Generation::stop(const Stop& request) {
  const std::uint64_t grace_ns = request.grace_ms() * kNanosPerMilli;
  if (!request.interrupt() || ending_.phase() != EndingPhase::kRunning)
    return order_stop(grace_ns, {}, request.after_failure());
  start_nothing_more();
  ending_.order_interrupt(grace_ns, monotonic_ns());
  check_soon();
}

void Generation::order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure) {
  start_nothing_more();
  if (stop_reason_.empty()) stop_reason_ = reason;
  // Between two generations nothing runs that a second Report could describe.
  const bool another_may_follow = workers_.generation() < last_generation_;
  if (ending_.reported() && another_may_follow && !stop_reason_.empty()) return finish();
  const bool is_informed = after_failure && control_.has_informed();
  ending_.order_stop(grace_ns, monotonic_ns(), is_informed ? Ending::kWarningNs : 0);
  check_soon();
}

void Generation::order_exit(std::uint64_t grace_ns, const std::string& reason) {
  exit_requested_ = true;
  order_stop(grace_ns, reason);
}

void Generation::finish_after_report() {
  if (is_idle()) return finish();
  finish_requested_ = true;
  order_stop(grace_ns_, {});
}

void Generation::start_nothing_more() {
  devices_.query_before_report();
  devices_.give_up();
  workers_.call_off_starts();
  // Reap first: a worker that has already exited was not stopped by us.
  if (!ending_.stopping()) workers_.collect_all();
  replacement_timer_.cancel();
  for (const std::uint32_t rank : replacements_.give_up()) reject_rank(rank, workers_.generation());
}

// -- The next step, whenever a fact has changed or its time has come

// Checks in a later turn, because the check may end workers' streams, which requests a check again.
void Generation::check_soon() {
  if (std::exchange(is_check_posted_, true)) return;
  boost::asio::post(context_.loop, [this] {
    is_check_posted_ = false;
    start_replacements();
    check();
  });
}

void Generation::check() {
  for (;;) {
    const EndingStep step = ending_.advance(facts(), monotonic_ns());
    if (step.action != EndingAction::kNothing) {
      perform(step.action);
      continue;
    }
    if (!step.again_ns) return;
    ending_timer_.expires_after(std::chrono::nanoseconds(*step.again_ns));
    ending_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) check_soon();
    });
    return;
  }
}

EndingFacts Generation::facts() {
  EndingFacts facts;
  facts.workers_ended = workers_.have_ended() && !awaits_replacement();
  facts.have_succeeded = facts.workers_ended && workers_.have_succeeded();
  facts.has_all_output = workers_.are_over();
  if (facts.workers_ended && !is_proved_empty_ && ending_.phase() != EndingPhase::kIdle)
    // The process tree is proved empty by two passes in a row, so a first "no" is checked again.
    is_proved_empty_ =
        !context_.containment || context_.containment->empty() || context_.containment->empty();
  facts.empty = is_proved_empty_;
  return facts;
}

void Generation::perform(EndingAction action) {
  switch (action) {
    case EndingAction::kTerminate:
      if (context_.containment) context_.containment->signal_all(SIGTERM);
      return;
    case EndingAction::kTerminateLeftovers:
      if (!context_.containment) return;
      leftovers_ = context_.containment->members();
      return context_.containment->signal_all(SIGTERM);
    case EndingAction::kInterrupt:
      return interrupt_workers();
    case EndingAction::kTerminateUninformed:
      return terminate_uninformed();
    case EndingAction::kKill:
      name_killed();
      if (context_.containment) context_.containment->kill_all();
      return;
    case EndingAction::kReportClean:
    case EndingAction::kReportLeftovers:
      is_report_clean_ = action == EndingAction::kReportClean;
      return devices_.settle();  // Then devices_settled() sends the report.
    case EndingAction::kNothing:
      return;
  }
}

// Keeps the names of the processes that the first KILL of a stop ends although all workers have
// exited.
void Generation::name_killed() {
  if (std::exchange(has_named_killed_, true) || !leftovers_.empty()) return;
  if (context_.containment && workers_.have_ended()) leftovers_ = context_.containment->members();
}

// Sends CONT and INT to every worker's process group, as Ctrl-C on a terminal would. A process that
// has left the group gets only the TERM that follows.
void Generation::interrupt_workers() {
  for (const std::unique_ptr<Worker>& worker : workers_.all()) {
    // A worker that has not been reaped keeps its pid, and is the leader of its group.
    if (!is_alive(worker->state()) || worker->pid() <= 1) continue;
    kill(-worker->pid(), SIGCONT);
    kill(-worker->pid(), SIGINT);
  }
}

// Sends CONT and TERM to the workers that were not notified of the failure on the control socket,
// and to all processes below them or in their process groups. Notified workers get a second to
// report what they know.
void Generation::terminate_uninformed() {
  if (!context_.containment) return;
  std::set<pid_t> leaders;
  for (const std::unique_ptr<Worker>& worker : workers_.all())
    if (is_alive(worker->state()) && !control_.is_informed(worker->rank()))
      leaders.insert(worker->pid());
  if (leaders.empty()) return;
  std::vector<ProcessStat> processes;
  Parents parents;
  for (const JobProcess& member : context_.containment->members()) {
    ProcessStat process;
    if (!read_process_stat(member.pid, process)) continue;
    parents[process.pid] = process.parent;
    processes.push_back(process);
  }
  for (const ProcessStat& process : processes) {
    if (!belongs_to(leaders, parents, process.pid)) continue;
    signal_process(process.pid, process.start_time, SIGCONT);
    signal_process(process.pid, process.start_time, SIGTERM);
  }
}

// -- The end

void Generation::report(bool is_clean) {
  // The ranks have exited; the servers must not reach the store of the next generation.
  mpi_.end();
  jax_.end();
  Event event;
  Report* report = event.mutable_report();
  report->set_generation(workers_.generation());
  report->set_clean(is_clean);
  report->set_reason(stop_reason_);
  const std::vector<JobProcess> leftovers = std::exchange(leftovers_, {});
  report->set_left_behind_count(static_cast<std::uint32_t>(leftovers.size()));
  for (std::size_t i = 0; i < std::min(leftovers.size(), kNamedProcesses); ++i)
    report->add_left_behind(leftovers[i].name);
  if (!is_clean && context_.containment) {
    for (const JobProcess& process : context_.containment->members()) {
      Leftover* leftover = report->add_leftovers();
      leftover->set_pid(process.pid);
      leftover->set_name(process.name);
      leftover->set_state(std::string(1, process.state));
      leftover->set_waiting_in(process.waiting_in);
    }
  }
  events_.send(event);
  // On the launcher's host a lost link cannot be replaced, so data that was written need not
  // be sent again.
  const bool is_local = context_.start.peer == LinkPeer::kLauncher;
  const bool is_final = finishes_when_clean_ && is_local && !outlives_launcher_ && is_clean;
  const bool is_delivered = is_final && channel_.flush_now();
  // A launcher that is suspended or has exited does not fetch the report.
  const bool is_unattended = exit_requested_ && lease_.state() != LeaseState::kAttached;
  if (is_delivered || finish_requested_ || is_unattended || lease_.ended() || events_.were_lost())
    finish();
}

void Generation::finish() {
  // The job ends when nothing of it is left on this host; container_closed() continues here.
  if (container_.is_open()) return container_.close();
  channel_.flush_now();
  store_.close();
  mpi_.end();
  jax_.end();
  workers_.end_preload();
  devices_.end();
  Containment* const containment = context_.containment.get();
  const bool is_empty = containment == nullptr || containment->empty();
  if (containment != nullptr && is_empty) containment->remove();
  // Its commands are outside the containment: the warden kills them unless it gets the notice.
  const bool is_checking = tasks_.check.is_running();
  const SupervisorStart& start = context_.start;
  // The warden would not remove a directory that it has not created.
  if (context_.directory_lock)
    remove_job_directory({start.directory.path, context_.directory_lock.get()});
  // If a job has started, the peers need not wait while the kernel frees this process's memory.
  if (containment != nullptr && is_empty && !is_checking && send_exit_notice(start.exit_notice_fd))
    channel_.hang_up();
  else
    remove_job_directory(start.directory);
  context_.loop.stop();
}

}  // namespace ivy
