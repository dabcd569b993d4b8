#include "agent/node/supervisor/supervisor.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/devices/discovery.h"
#include "agent/node/facts/address_check.h"
#include "agent/node/facts/own_package.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/spawn/choose_containment.h"
#include "agent/node/spawn/processor_share.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/hello.h"
#include "agent/node/supervisor/host_stores.h"
#include "agent/node/supervisor/job_outcome.h"
#include "agent/node/supervisor/stop_order.h"
#include "agent/node/workers/ending.h"
#include "agent/node/workers/event_budget.h"
#include "agent/node/workers/exit_order.h"
#include "agent/node/workers/input_pipe.h"
#include "agent/node/workers/lease.h"
#include "agent/node/workers/output_pump.h"
#include "agent/node/workers/python_hook.h"
#include "agent/node/workers/worker.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"
#include "proto/os/process.h"
#include "proto/os/short_slice.h"
#include "proto/os/user_places.h"
#include "proto/wire/job.pb.h"

namespace ivy {
namespace {

using boost::system::error_code;

// At each heartbeat the supervisor also checks the progress of workers' operations.
constexpr int kTicksPerHeartbeat = kHeartbeat / kSupervisorTick;
// More workers than any host has use for; each costs five descriptors here. The launcher's plan
// refuses them with a message (launcher/plan/plan.cc).
constexpr int kMaxWorkers = 4096;
// More addresses than a launcher has reason to ask for at once.
constexpr int kMaxAddressChecks = 64;

// How long workers that have ended wait for a file system that takes nothing of their log files.
// While workers run there is no limit.
constexpr std::uint64_t kLogPatienceNs = 60 * kNanosPerSecond;
constexpr std::uint64_t kLogPatienceAfterStopNs = 5 * kNanosPerSecond;

Error out_of_turn(const char* what) { return Error{Code::kFailedPrecondition, what}; }

class Supervisor {
 public:
  explicit Supervisor(const SupervisorStart& start);
  int run();

 private:
  Result<void> on_frame(link::Frame& frame);
  Result<void> on_command(const Command& command);
  Result<void> on_hello(const Hello& hello);
  Result<void> on_check_address(const CheckAddress& request);
  Result<void> on_start(const HostPlan& plan);
  Result<void> on_start_again(const StartAgain& request);
  Result<void> on_open_store(const OpenStore& request);
  ContainmentRequest containment_request() const;
  void start_group();
  void forget_generation();
  void refuse_start(const HostPlan& plan, std::uint32_t generation);
  void count_out_of_memory_kills();
  void on_signal_workers(int signal);
  void on_finish();
  void on_taken_over(const std::vector<link::OutputChunk>& waiting);
  void send(const Event& event);
  void pass_on(const Event& event, const std::string& bytes);
  void lose_events();
  void tell_held_news();
  void warn_of_log(const std::string& text);

  std::unique_ptr<OutputPump> make_output();
  WorkerGroup group_of(const HostPlan& plan, const ProcessorShare& share) const;
  void collect(Worker& worker);
  void collect_in_order();
  void collect_one(Worker& worker);
  void collect_all();
  void reap_children();
  Worker* worker_of(pid_t pid);
  void open_control();
  pid_t process_of(std::uint32_t rank) const;

  void on_stop(const Stop& stop);
  void order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure = false);
  bool another_may_follow() const { return generation_ < last_generation_; }
  void check_lease();
  void schedule_check();
  void check_ending();
  EndingFacts ending_facts();
  void perform(EndingAction action);
  void report(EndingAction action);
  void finish();

  void wait_tick();
  void on_tick();
  void wait_signal();
  void wait_warden();
  void wait_step_task();

  boost::asio::io_context loop_{1};
  const SupervisorStart start_;
  Lease lease_{LeaseLimits{}};
  CommandChannel channel_;
  std::unique_ptr<OutputPump> output_;  // Copies this generation's output.
  InputPipe input_;
  boost::asio::steady_timer tick_timer_{loop_};
  boost::asio::steady_timer ending_timer_{loop_};
  boost::asio::signal_set signals_{loop_, SIGCHLD, SIGTERM, SIGUSR1};
  boost::asio::posix::stream_descriptor warden_{loop_};
  boost::asio::posix::stream_descriptor step_task_{loop_};

  std::unique_ptr<Containment> containment_;  // Set by Hello.
  ControlServer control_;
  std::string control_socket_;  // Empty: the control server does not listen.
  JobPorts ports_;
  Discovery discovery_{loop_, program_directory() + "/ivy-probe"};
  HostStores stores_{loop_, [this](const Event& event) { send(event); },
                     [this](pid_t pid) { containment_->spare(pid); }, start_.step_task != 0};
  StackCollector stacks_{loop_,
                         {[this](const Event& event) { send(event); },
                          [this] { return channel_.session().waiting_control_bytes(); },
                          [this](pid_t pid) { containment_->spare(pid); }}};
  std::optional<WorkerContext> context_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<ExitOrder> exits_ =
      std::make_unique<ExitOrder>();  // The order in which they ended.
  std::uint64_t last_end_ns_ = 0;
  std::uint32_t generation_ = 0;
  std::uint32_t max_restarts_ = 0;
  std::uint32_t last_generation_ = 0;
  HostPlan plan_;            // The last one started, for StartAgain.
  Environment environment_;  // Shared by its workers.
  EventBudget events_;
  // Out-of-memory kills that happened before the job or were attributed to a worker.
  std::optional<long> out_of_memory_seen_;
  bool outlives_launcher_ = false;
  bool events_were_lost_ = false;  // The right verdict cannot be reached any more.

  Ending ending_;
  std::string reason_;
  bool is_proved_empty_ = false;
  bool finish_when_reported_ = false;
  bool finish_when_clean_ = false;
  bool asked_to_end_ = false;  // By SIGTERM.
  JobOutcome outcome_;
  bool check_posted_ = false;
  bool log_warned_ = false;
  int address_checks_ = 0;
  int ticks_ = 0;
  int exit_code_ = 0;
  std::uint64_t grace_ns_ = nanoseconds_of(kGraceAfterFailure);
  const std::uint64_t began_ns_ = monotonic_ns();
  std::uint64_t last_tick_ns_ = began_ns_;
};

Supervisor::Supervisor(const SupervisorStart& start)
    : start_(start),
      channel_(loop_, start, lease_,
               {[this](link::Frame& frame) { return on_frame(frame); }, [this] { output_->pump(); },
                [this] { check_lease(); },
                [this](const std::vector<link::OutputChunk>& waiting) { on_taken_over(waiting); }}),
      output_(make_output()),
      input_(loop_, channel_.session(), [this] { channel_.flush(); }),
      control_(loop_, {[this](const Event& event) { send(event); },
                       [this](std::uint32_t rank) { return process_of(rank); }}) {}

int Supervisor::run() {
  wait_tick();
  wait_signal();
  wait_warden();
  wait_step_task();
  // A child that ended before the signal was watched raises no signal any more.
  reap_children();
  loop_.run();
  if (!start_.tells_outcome || exit_code_ != 0) return exit_code_;
  return outcome_.exit_code(!workers_.empty(), lease_.ended() || events_were_lost_);
}

Result<void> Supervisor::on_frame(link::Frame& frame) {
  if (frame.header.type == link::FrameType::kInput) {
    input_.push(std::move(frame.payload));
    return {};
  }
  Command command;
  if (!command.ParseFromString(frame.payload))
    return Error{Code::kDataLoss, "a command cannot be read"};
  return on_command(command);
}

Result<void> Supervisor::on_command(const Command& command) {
  switch (command.kind_case()) {
    case Command::kHello:
      return on_hello(command.hello());
    case Command::kCheckAddress:
      return on_check_address(command.check_address());
    case Command::kStart:
      // Only in this case can no launcher redial, so that what has been written need not be sent
      // again.
      finish_when_clean_ =
          command.start().is_last() && start_.carrier == CarrierKind::kLocal && !outlives_launcher_;
      max_restarts_ = command.start().max_restarts();
      last_generation_ = command.start().last_generation();
      return on_start(command.start().plan());
    case Command::kSignalWorkers:
      on_signal_workers(command.signal_workers().signal());
      return {};
    case Command::kStop:
      on_stop(command.stop());
      return {};
    case Command::kPause:
      lease_.paused();
      return {};
    case Command::kFinish:
      on_finish();
      return {};
    case Command::kOpenStore:
      return on_open_store(command.open_store());
    case Command::kStartAgain:
      return on_start_again(command.start_again());
    case Command::kBeginGeneration:
      stores_.begin_generation(command.begin_generation().generation());
      return {};
    case Command::kNews:
      control_.take(command.news());
      return {};
    case Command::kReadOperations:
      control_.tell_operations(command.read_operations().number());
      return {};
    case Command::kCollectStacks:
      stacks_.collect(command.collect_stacks(), workers_,
                      {start_.directory, generation_, environment_});
      return {};
    case Command::KIND_NOT_SET:
      break;
  }
  return Error{Code::kDataLoss, "an empty command"};
}

Result<void> Supervisor::on_hello(const Hello& hello) {
  if (hello.lease_ms() > 0) lease_.set_silence(hello.lease_ms() * kNanosPerMilli);
  grace_ns_ = hello.grace_ms() * kNanosPerMilli;
  write_stop_grace(start_.directory.path, std::chrono::milliseconds(hello.grace_ms()));
  if (hello.outlives_launcher()) {
    outlives_launcher_ = true;
    events_.keep_for_takeover();
    lease_.set_outlives_launcher(true);
    channel_.allow_takeover();
  }
  if (!containment_) containment_ = make_containment(containment_request());
  const Result<void> token = write_token_file(start_.directory.token_file(), channel_.token());
  Event event;
  *event.mutable_hello_ok() = answer_hello(hello, *containment_, start_.directory, ports_);
  // Workers could not authenticate: not to start is better than to fail later and elsewhere.
  if (!token.ok())
    event.mutable_hello_ok()->mutable_facts()->set_job_directory_error(token.error().message);
  // With accelerators this takes up to two seconds, during which all else goes on.
  discovery_.complete(hello, event, [this](const Event& answer) { send(answer); });
  // Done after the answer is sent, while the launcher makes its plan.
  boost::asio::post(loop_, [this] {
    open_control();
    count_out_of_memory_kills();
    containment_->settle();
  });
  return {};
}

void Supervisor::count_out_of_memory_kills() {
  if (!out_of_memory_seen_) out_of_memory_seen_ = containment_->out_of_memory_kills();
}

Result<void> Supervisor::on_check_address(const CheckAddress& request) {
  if (address_checks_ >= kMaxAddressChecks) return out_of_turn("too many address checks at once");
  ++address_checks_;
  check_address(loop_, request, [this, request](const AddressChecked& answer) {
    --address_checks_;
    Event event;
    *event.mutable_address_checked() = answer;
    event.mutable_address_checked()->set_address(request.address());
    event.mutable_address_checked()->set_port(request.port());
    send(event);
  });
  return {};
}

Result<void> Supervisor::on_open_store(const OpenStore& request) {
  if (!containment_ || !ports_.master || !ports_.store || stores_.has_store())
    return out_of_turn("OpenStore before Hello, without ports, or twice");
  stores_.open_store(request, start_.job_id, start_.directory, ports_.store->port(),
                     ports_.master->port());
  return {};
}

WorkerGroup Supervisor::group_of(const HostPlan& plan, const ProcessorShare& share) const {
  WorkerGroup group;
  group.generation = plan.generation();
  group.arguments.assign(plan.arguments().begin(), plan.arguments().end());
  group.working_directory = plan.working_directory();
  group.log_directory = plan.log_directory();
  group.environment = inherited_environment(environ, {plan.unset().begin(), plan.unset().end()});
  for (const Variable& variable : plan.environment())
    set_variable(group.environment, variable.name(), variable.value());
  const std::string program = program_directory();
  append_package(group.environment, own_package(program));
  add_evidence_variables(group.environment, start_.directory, plan.generation());
  group.own_sessions = share.own_sessions;
  group.python_hook =
      plan.python_hook() && add_python_hook(group.environment, own_hook(program), start_.directory);
  return group;
}

Result<void> Supervisor::on_start(const HostPlan& plan) {
  if (!containment_) return out_of_turn("Start before Hello");
  // Answered, not cut off: a frame that was received is never sent again.
  if (plan.arguments().empty() || plan.workers_size() > kMaxWorkers) {
    refuse_start(plan, plan.generation());
    return {};
  }
  if (!workers_.empty() && plan.generation() == generation_) return {};
  if (!workers_.empty() || ending_.stopping() || ending_.reported()) {
    refuse_start(plan, plan.generation());
    return {};
  }
  plan_ = plan;
  start_group();
  return {};
}

Result<void> Supervisor::on_start_again(const StartAgain& request) {
  if (!containment_) return out_of_turn("StartAgain before Hello");
  if (!workers_.empty() && request.generation() == generation_) return {};
  // Nothing may start beside processes that could not be ended, or after this host had a reason to
  // stop.
  const bool is_proved_gone = ending_.reported() && exit_code_ == 0 && reason_.empty();
  const bool is_too_large = request.plan().workers_size() > kMaxWorkers;
  if (workers_.empty() || request.generation() < generation_ || !is_proved_gone || is_too_large) {
    refuse_start(request.has_plan() ? request.plan() : plan_, request.generation());
    Event event;
    event.mutable_report()->set_generation(request.generation());
    event.mutable_report()->set_clean(exit_code_ == 0);
    send(event);
    return {};
  }
  forget_generation();
  finish_when_clean_ =
      request.is_last() && start_.carrier == CarrierKind::kLocal && !outlives_launcher_;
  if (request.has_plan()) plan_ = request.plan();
  plan_.set_generation(request.generation());
  for (const Variable& changed : request.environment()) {
    auto& variables = *plan_.mutable_environment();
    const auto known = std::find_if(variables.begin(), variables.end(), [&](const Variable& other) {
      return other.name() == changed.name();
    });
    *(known != variables.end() ? &*known : variables.Add()) = changed;
  }
  // The input that the last generation has read does not come again: half an input misleads.
  for (WorkerSpec& spec : *plan_.mutable_workers()) spec.set_standard_input(false);
  start_group();
  return {};
}

void Supervisor::start_group() {
  generation_ = plan_.generation();
  open_control();
  control_.begin(layout_of(plan_));
  count_out_of_memory_kills();
  context_.emplace(WorkerContext{
      loop_, *containment_, start_.directory, start_.job_id, start_.host, *output_, input_,
      control_socket_, [this](const Event& event) { send(event); }, [this] { schedule_check(); }});
  stores_.open_leaf(plan_, start_.job_id, start_.directory, ports_.leaf ? ports_.leaf->port() : 0);
  const ProcessorShare share =
      share_of(static_cast<std::size_t>(plan_.workers_size()), own_processor_count());
  apply_share(share);
  const WorkerGroup group = group_of(plan_, share);
  environment_ = group.environment;
  for (const WorkerSpec& spec : plan_.workers()) {
    workers_.push_back(std::make_unique<Worker>(*context_, spec.rank()));
    workers_.back()->begin(group, spec);
  }
  for (std::uint32_t index = 0; index < workers_.size(); ++index) {
    Worker& started = *workers_[index];
    started.finish_start(group, [this](Worker& worker) { collect(worker); });
    if (is_alive(started.state()))
      exits_->watch(started.pidfd(), index);
    else
      control_.worker_not_started(started.rank());
  }
  const auto takes_input = [](const WorkerSpec& spec) { return spec.standard_input(); };
  if (std::none_of(plan_.workers().begin(), plan_.workers().end(), takes_input)) input_.close();
  ending_.workers_started();
  schedule_check();
}

ContainmentRequest Supervisor::containment_request() const {
  return {.job_id = start_.job_id,
          .host = start_.host,
          .supervisor = getpid(),
          .warden = start_.warden_pid,
          .proof = CgroupProof::kTrialBirth,
          .in_step = start_.step_task != 0};
}

// Called when its Report has been sent: no process, open pipe or byte of it is left here.
void Supervisor::forget_generation() {
  // A cgroup that was ended by cgroup.kill is not used again: Linux 6.18 at once kills processes
  // that are later started into it from outside.
  containment_->remove();
  containment_ = make_containment(containment_request());
  stores_.spare_from([this](pid_t pid) { containment_->spare(pid); });
  // Destroy them in a later turn: their cancelled handlers are still queued.
  boost::asio::post(loop_,
                    [this, workers = std::exchange(workers_, {}),
                     output = std::exchange(output_, make_output())] { containment_->settle(); });
  exits_ = std::make_unique<ExitOrder>();
  ending_.begin_again();
  ending_timer_.cancel();
  is_proved_empty_ = false;
  // Start the count of kills afresh, so that earlier kills of non-workers are not blamed on a
  // worker of the next generation.
  out_of_memory_seen_.reset();
  outcome_.forget();
  events_.forget_kept();
}

void Supervisor::refuse_start(const HostPlan& plan, std::uint32_t generation) {
  for (const WorkerSpec& spec : plan.workers()) {
    Event event;
    StartFailed* failed = event.mutable_start_failed();
    failed->set_generation(generation);
    failed->set_rank(spec.rank());
    failed->set_error(ECANCELED);
    failed->set_step("start");
    failed->set_at_ns(monotonic_ns());
    send(event);
  }
}

void Supervisor::on_signal_workers(int signal) {
  if (signal < 1 || signal >= NSIG) return;
  for (const std::unique_ptr<Worker>& worker : workers_) worker->send_signal(signal);
}

void Supervisor::on_finish() {
  const bool nothing_runs = ending_.phase() == EndingPhase::kIdle || ending_.reported();
  if (nothing_runs) return finish();
  finish_when_reported_ = true;
  order_stop(grace_ns_, {});
}

void Supervisor::send(const Event& event) {
  outcome_.note(event);
  // Whether an exit is a death follows only from the rank's earlier events: send held ones first.
  News news;
  if (event.has_exited() && events_.holds_news() && control_.known(event.exited().rank(), news)) {
    Event before;
    *before.mutable_news() = std::move(news);
    pass_on(before, before.SerializeAsString());
  }
  const std::uint64_t waiting_bytes = channel_.session().waiting_control_bytes();
  if (const std::optional<std::string> bytes = events_.admit(event, waiting_bytes))
    pass_on(event, *bytes);
}

// Fails only for a launcher that sends many requests and never acknowledges an answer.
void Supervisor::pass_on(const Event& event, const std::string& bytes) {
  const bool is_sent = channel_.session().send(link::FrameType::kEvent, bytes).ok();
  if (is_sent) channel_.flush();
  if (!is_sent && EventBudget::is_essential(event)) lose_events();
}

// A lost host, which every launcher understands, is better than an exit that is never reported.
void Supervisor::lose_events() {
  if (std::exchange(events_were_lost_, true)) return;
  boost::asio::post(loop_, [this] {
    if (ending_.phase() == EndingPhase::kIdle || ending_.reported()) return finish();
    order_stop(grace_ns_, "the launcher has not acknowledged " +
                              std::to_string(link::kMaxUnacknowledgedBytes >> 20) +
                              " MiB of what this host had to say");
  });
}

void Supervisor::tell_held_news() {
  if (!events_.take_held_news(channel_.session().waiting_control_bytes())) return;
  Event event;
  if (control_.known(*event.mutable_news())) send(event);
}

void Supervisor::on_taken_over(const std::vector<link::OutputChunk>& waiting) {
  TakenOver taken = streams_taken_over(output_->progress(), waiting, generation_);
  taken.set_max_restarts(max_restarts_);
  Event event;
  // Sent before the exits: the launcher must know by then which exits are no deaths.
  Event news;
  const bool has_news = control_.known(*news.mutable_news());
  taken.set_events(static_cast<std::uint32_t>(events_.kept().size() + (has_news ? 1 : 0)));
  *event.mutable_taken_over() = std::move(taken);
  link::Session& session = channel_.session();
  // The queue was just emptied, so it has room for all that it held before.
  bool sent = session.send(link::FrameType::kEvent, event.SerializeAsString()).ok();
  if (has_news) sent = sent && session.send(link::FrameType::kEvent, news.SerializeAsString()).ok();
  for (const std::string& bytes : events_.kept())
    sent = sent && session.send(link::FrameType::kEvent, bytes).ok();
  if (!sent) lose_events();
  input_.close();
}

void Supervisor::warn_of_log(const std::string& text) {
  if (std::exchange(log_warned_, true)) return;
  Event event;
  event.mutable_note()->set_warning(true);
  event.mutable_note()->set_text(text + "; this host's log files are incomplete from here on");
  send(event);
}

std::unique_ptr<OutputPump> Supervisor::make_output() {
  return std::make_unique<OutputPump>(
      loop_, channel_.session(),
      OutputPump::Handlers{[this] { channel_.flush(); },
                           [this](const std::string& text) { warn_of_log(text); }});
}

void Supervisor::collect(Worker& worker) {
  collect_in_order();
  collect_one(worker);
}

// The first rank to fail is found by these times: all are taken before any exit is examined, which
// is slow.
void Supervisor::collect_in_order() {
  const std::vector<std::uint32_t> ended = exits_->take();
  for (const std::uint32_t index : ended) {
    last_end_ns_ = std::max<std::uint64_t>(last_end_ns_ + 1, monotonic_ns());
    workers_[index]->stamp_end(last_end_ns_);
  }
  for (const std::uint32_t index : ended) collect_one(*workers_[index]);
}

void Supervisor::collect_one(Worker& worker) {
  if (!is_alive(worker.state())) return;
  ExitCircumstances circumstances;
  circumstances.stopping = ending_.stopping();
  circumstances.killed_by_us = ending_.has_killed();
  circumstances.out_of_memory_rose = [this] {
    return containment_->out_of_memory_kills() > *out_of_memory_seen_;
  };
  if (worker.has_ended()) control_.worker_ends(worker.rank());
  if (!worker.collect(circumstances)) return;
  if (worker.ended_out_of_memory()) ++*out_of_memory_seen_;
  control_.worker_ended(worker.rank(), worker.pid(), worker.exit_status(),
                        worker.ended_out_of_memory());
}

void Supervisor::collect_all() {
  for (const std::unique_ptr<Worker>& worker : workers_) collect(*worker);
}

Worker* Supervisor::worker_of(pid_t pid) {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->pid() == pid && is_alive(worker->state())) return worker.get();
  return nullptr;
}

// As a subreaper this process inherits every orphan of the job. The same sweep must not take a
// worker's status, so each child is identified before it is reaped.
void Supervisor::reap_children() {
  collect_in_order();
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    Worker* worker = worker_of(info.si_pid);
    if (worker == nullptr) {
      int status = 0;
      const pid_t reaped = waitpid(info.si_pid, &status, WNOHANG);
      if (reaped > 0)
        control_.child_reaped(reaped, exit_status_from_wait(info.si_code, info.si_status));
      if (reaped > 0) stores_.reaped(reaped, status);
      continue;
    }
    collect(*worker);
    if (is_alive(worker->state())) break;
  }
  if (ending_.phase() != EndingPhase::kIdle) schedule_check();
}

// A job without a control socket runs as before; libivycomm reports what it lacks.
void Supervisor::open_control() {
  if (!control_socket_.empty()) return;
  const std::string path = start_.directory.control_socket();
  if (control_.listen(path).ok()) control_socket_ = path;
}

pid_t Supervisor::process_of(std::uint32_t rank) const {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->rank() == rank) return worker->pid();
  return 0;
}

void Supervisor::on_stop(const Stop& stop) {
  const std::uint64_t grace_ns = stop.grace_ms() * kNanosPerMilli;
  if (!stop.interrupt() || ending_.phase() != EndingPhase::kRunning)
    return order_stop(grace_ns, {}, stop.after_failure());
  collect_all();
  ending_.order_interrupt(grace_ns, monotonic_ns());
  schedule_check();
}

void Supervisor::order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure) {
  // Reap first: a worker that has already exited is no victim of the stop.
  if (!ending_.stopping()) collect_all();
  if (reason_.empty()) reason_ = reason;
  // Between two generations nothing runs that a second Report could describe.
  if (ending_.reported() && another_may_follow() && !reason_.empty()) return finish();
  const bool is_told = after_failure && control_.has_told();
  ending_.order_stop(grace_ns, monotonic_ns(), is_told ? Ending::kWarningNs : 0);
  schedule_check();
}

void Supervisor::check_lease() {
  if (!lease_.ended()) return;
  if (ending_.reported()) return finish();
  output_->discard();
  input_.close();
  order_stop(grace_ns_, lease_.reason());
}

// Runs the check in a later turn: it may end workers' streams, which asks for a check again.
void Supervisor::schedule_check() {
  if (std::exchange(check_posted_, true)) return;
  boost::asio::post(loop_, [this] {
    check_posted_ = false;
    check_ending();
  });
}

EndingFacts Supervisor::ending_facts() {
  EndingFacts facts;
  facts.workers_ended = true;
  facts.output_queued = true;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (is_alive(worker->state())) facts.workers_ended = false;
    if (!is_over(worker->state())) facts.output_queued = false;
  }
  // The process tree is proved empty by two passes in a row, so a first "no" is asked again.
  if (facts.workers_ended && !is_proved_empty_ && ending_.phase() != EndingPhase::kIdle)
    is_proved_empty_ = !containment_ || containment_->empty() || containment_->empty();
  facts.empty = is_proved_empty_;
  return facts;
}

void Supervisor::check_ending() {
  for (;;) {
    const EndingStep step = ending_.advance(ending_facts(), monotonic_ns());
    if (step.action != EndingAction::kNothing) {
      perform(step.action);
      continue;
    }
    if (!step.again_ns) return;
    ending_timer_.expires_after(std::chrono::nanoseconds(*step.again_ns));
    ending_timer_.async_wait([this](const error_code& error) {
      if (!error) schedule_check();
    });
    return;
  }
}

void Supervisor::perform(EndingAction action) {
  switch (action) {
    case EndingAction::kTerminate:
      if (containment_) containment_->signal_all(SIGTERM);
      return;
    case EndingAction::kInterrupt:
      return interrupt_groups(workers_);
    case EndingAction::kTerminateUntold:
      if (containment_) terminate_untold(*containment_, workers_, control_);
      return;
    case EndingAction::kKill:
      if (containment_) containment_->kill_all();
      return;
    case EndingAction::kReportClean:
    case EndingAction::kReportLeftovers:
      return report(action);
    case EndingAction::kNothing:
      return;
  }
}

void Supervisor::report(EndingAction action) {
  Event event;
  Report* report = event.mutable_report();
  report->set_generation(generation_);
  report->set_clean(action == EndingAction::kReportClean);
  report->set_reason(reason_);
  if (action == EndingAction::kReportLeftovers && containment_) {
    exit_code_ = 1;
    for (const JobProcess& process : containment_->members()) {
      Leftover* leftover = report->add_leftovers();
      leftover->set_pid(process.pid);
      leftover->set_name(process.name);
      leftover->set_state(std::string(1, process.state));
      leftover->set_waiting_in(process.waiting_in);
    }
  }
  send(event);
  const bool is_told = finish_when_clean_ && report->clean() && channel_.flush_now();
  // The sender of the signal waits for our exit, and a launcher that is suspended or gone does not
  // fetch the report.
  const bool is_alone = asked_to_end_ && lease_.state() != LeaseState::kAttached;
  if (is_told || finish_when_reported_ || is_alone || lease_.ended() || events_were_lost_) finish();
}

void Supervisor::finish() {
  channel_.flush_now();
  stores_.end();
  if (containment_ && containment_->empty()) containment_->remove();
  remove_job_directory(start_.directory);
  loop_.stop();
}

void Supervisor::wait_tick() {
  tick_timer_.expires_after(kSupervisorTick);
  tick_timer_.async_wait([this](const error_code& error) {
    if (error) return;
    on_tick();
    wait_tick();
  });
}

void Supervisor::on_tick() {
  const std::uint64_t now_ns = monotonic_ns();
  const std::uint64_t elapsed_ns = now_ns - std::exchange(last_tick_ns_, now_ns);
  lease_.advance(elapsed_ns);
  channel_.tick(now_ns);
  for (const std::unique_ptr<Worker>& worker : workers_) worker->tick(now_ns);
  output_->tick(elapsed_ns, ending_.stopping() ? kLogPatienceAfterStopNs : kLogPatienceNs);
  if (++ticks_ % kTicksPerHeartbeat == 0) {
    // A suspended launcher does not read: needless heartbeats would fill its connection.
    if (lease_.state() != LeaseState::kPaused) channel_.session().send_heartbeat();
    channel_.flush();
    control_.tell_stall(plan_.stall_seconds() * kNanosPerSecond);
  }
  tell_held_news();
  if (!containment_ && now_ns - began_ns_ >= nanoseconds_of(kHelloTimeout)) return finish();
  check_lease();
}

void Supervisor::wait_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    // There is no launcher yet that could get the reason or acknowledge it.
    const bool has_begun = containment_ || lease_.state() != LeaseState::kWaiting;
    if (signal == SIGTERM && !has_begun) return finish();
    // The launcher, where there is one, decides what a step's signal means.
    const bool is_told = start_.step_task != 0 && lease_.state() == LeaseState::kAttached;
    Event event;  // Sent before any exit that follows from it.
    event.mutable_signalled()->set_signal(signal);
    if (is_told && signal != SIGCHLD) send(event);
    if (signal == SIGTERM && !is_told) {
      asked_to_end_ = start_.step_task == 0;
      const auto grace = read_stop_grace(start_.directory.path);
      order_stop(grace ? nanoseconds_of(*grace) : grace_ns_,
                 "the supervisor was asked to end (SIGTERM)");
    }
    if (signal == SIGCHLD) reap_children();
    wait_signal();
  });
}

void Supervisor::wait_warden() {
  if (start_.warden_pidfd < 0) return;
  warden_.assign(start_.warden_pidfd);
  warden_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const error_code& error) {
                       if (!error) order_stop(0, "warden lost");
                     });
}

void Supervisor::wait_step_task() {
  if (start_.step_task == 0) return;
  const int fd = open_pidfd(start_.step_task);
  const auto lost = [this] { order_stop(grace_ns_, "the task of the Slurm step was killed"); };
  if (fd < 0) return boost::asio::post(loop_, lost);
  step_task_.assign(fd);
  step_task_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [lost](const error_code& error) {
                          if (!error) lost();
                        });
}

}  // namespace

int run_supervisor(const SupervisorStart& start) {
  prefer_short_slices();
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  if (start.step_task != 0)
    for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGQUIT}) std::signal(signal, SIG_IGN);
  // A worker costs up to seven descriptors here; the soft limit is often 1024.
  raise_descriptor_limit();
  try {
    // Never destroyed: the process exits next, and the kernel takes everything back at once.
    auto* const supervisor = new Supervisor(start);
    return supervisor->run();
  } catch (const std::exception& error) {
    // Out of memory or of descriptors for the loop itself. The warden ends the workers.
    std::fprintf(stderr, "ivy-node: supervisor: %s\n", error.what());
    return 1;
  }
}

}  // namespace ivy
