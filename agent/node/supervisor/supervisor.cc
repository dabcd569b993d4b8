// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/supervisor.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/devices/discovery.h"
#include "agent/node/facts/address_check.h"
#include "agent/node/facts/own_package.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/spawn/cgroup.h"
#include "agent/node/spawn/choose_containment.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/device_watch.h"
#include "agent/node/supervisor/event_sender.h"
#include "agent/node/supervisor/hello.h"
#include "agent/node/supervisor/host_stores.h"
#include "agent/node/supervisor/host_workers.h"
#include "agent/node/supervisor/jax_service.h"
#include "agent/node/supervisor/job_outcome.h"
#include "agent/node/supervisor/mpi_servers.h"
#include "agent/node/supervisor/rank_exits.h"
#include "agent/node/supervisor/stop_order.h"
#include "agent/node/supervisor/stop_progress.h"
#include "agent/node/supervisor/supervisor_signals.h"
#include "agent/node/workers/ending.h"
#include "agent/node/workers/lease.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/os/blocking.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/heartbeat.h"
#include "proto/os/process.h"
#include "proto/os/short_slice.h"
#include "proto/os/user_places.h"
#include "proto/wire/job.pb.h"

namespace ivy {
namespace {

// At each heartbeat the supervisor also checks the progress of workers' operations.
constexpr int kTicksPerHeartbeat = kHeartbeat / kSupervisorTick;
// More workers than any host has use for; each costs five descriptors here. The launcher's plan
// refuses them with a message (launcher/plan/plan.cc).
constexpr int kMaxWorkers = 4096;
// More addresses than a launcher has reason to ask for at once.
constexpr int kMaxAddressChecks = 64;

// The report names at most this many of the processes that outlived the workers.
constexpr std::size_t kNamedProcesses = 8;

// The cgroup that the warden has tried; empty where there is none, or where it does not say so
// soon.
std::string hear_of_cgroup(int pipe) {
  constexpr int kPatienceMs = 100;
  pollfd waited{pipe, POLLIN, 0};
  if (pipe < 0 || poll(&waited, 1, kPatienceMs) != 1) return {};
  std::array<char, PIPE_BUF> text{};
  const ssize_t length = read(pipe, text.data(), text.size());
  return described_cgroup({text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))});
}

// False where a descendant is left, which the warden then ends.
bool say_farewell(int pipe) {
  siginfo_t info{};
  if (pipe < 0 || waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD)
    return false;
  return write(pipe, "f", 1) == 1;
}

// Sockets hold the directory that they were bound in, also a removed one, and the last to let go
// waits until its blocks are free (some disks are told of them at once). That is to be the warden,
// which ends meanwhile and has less to take to pieces.
void let_go_of_directory() {
  constexpr unsigned kFirst = 3;
  syscall(SYS_close_range, kFirst, ~0u, 0u);  // Before Linux 5.9 the exit does it.
}

// Makes the descriptor table large enough for 140 workers. Once a process has threads, the kernel
// makes the table larger only after an RCU grace period: each doubling would stop a start of many
// workers for 3 to 5 ms. The table keeps its size when the descriptor is closed.
void reserve_descriptors() {
  constexpr int kReserved = 1024;
  const Descriptor last(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, kReserved - 1));
}

ContainmentRequest containment_request(const SupervisorStart& start) {
  return {.job_id = start.job_id,
          .host = start.host,
          .supervisor = getpid(),
          .warden = start.warden_pid,
          .proved_cgroup = hear_of_cgroup(start.containment_fd),
          .in_step = start.step_task != 0};
}

Error out_of_turn(const char* what) { return Error{Code::kFailedPrecondition, what}; }

// The last event of a generation that this host does not start.
Event refusal_report(std::uint32_t generation, bool is_clean) {
  Event event;
  event.mutable_report()->set_generation(generation);
  event.mutable_report()->set_clean(is_clean);
  return event;
}

// Scripts that listen at a port of their own may do so without SO_REUSEADDR (LightGBM's and
// XGBoost's do), which a port that is still kept does not allow.
bool has_listening_scripts(const HostPlan& plan) {
  return std::any_of(plan.workers().begin(), plan.workers().end(), [](const WorkerSpec& spec) {
    if (spec.app().every_rank_is_client()) return true;
    return std::any_of(
        spec.environment().begin(), spec.environment().end(),
        [](const Variable& variable) { return variable.name() == "IVY_LISTEN_PORT"; });
  });
}

std::vector<pid_t> processes_of(const Containment& containment) {
  std::vector<pid_t> processes;
  for (const JobProcess& process : containment.members()) processes.push_back(process.pid);
  return processes;
}

// The job's terms, as set by a launcher's commands.
struct JobTerms {
  std::uint64_t grace_ns = nanoseconds_of(kGraceAfterFailure);
  bool outlives_launcher = false;
  std::uint32_t max_restarts = 0;
  std::uint32_t last_generation = 0;
};

// When the supervisor finishes by itself, without a Finish.
struct FinishWhen {
  bool reported = false;    // The launcher has sent Finish, and workers still ran.
  bool clean = false;       // No launcher can redial: what has been written need not be sent again.
  bool unattached = false;  // It was asked to end by SIGTERM, whose sender waits for the exit.
};

// The answer to Hello, and the parts that it still lacks.
struct Greeting {
  Hello hello;
  HelloOk answer;
  bool awaits_host = true;     // A look at the host's and the user's files.
  bool awaits_devices = true;  // Discovery.
};

// Servers on this host for the workers' frameworks.
struct FrameworkServers {
  MpiServers mpi;
  JaxService jax;
};

// The accelerators of this host, and their health.
struct HostDevices {
  Discovery discovery;
  DeviceWatch watch;
};

class Supervisor {
 public:
  explicit Supervisor(const SupervisorStart& start);
  int run();

 private:
  Result<void> on_frame(link::Frame& frame);
  Result<void> on_command(const Command& command);
  void on_order(const Command& command);
  Result<void> on_hello(const Hello& hello);
  Result<void> on_check_address(const CheckAddress& request);
  Result<void> on_start(const HostPlan& plan);
  Result<void> on_start_again(const StartAgain& request);
  Result<void> on_open_store(const OpenStore& request);
  void on_stop(const Stop& stop);
  void on_finish();
  void on_taken_over(const std::vector<link::OutputChunk>& waiting);
  void on_signal(int signal);
  void on_events_lost();
  void on_tick(std::uint64_t now_ns, std::uint64_t elapsed_ns);

  void start_group(const HostPlan& plan);
  void write_own_grace() const {
    write_stop_grace(start_.directory.path,
                     std::chrono::milliseconds(terms_.grace_ns / kNanosPerMilli));
  }
  void open_control() {
    // A job without a control socket runs as before; libivycomm reports what it lacks.
    (void)control_.listen(start_.directory.control_socket());
  }
  void restore_directory();
  void forget_generation();
  void refuse_start(const HostPlan& plan, std::uint32_t generation);
  void refuse_rank(std::uint32_t rank, std::uint32_t generation);
  void reap_children();
  bool is_looking_at_host() const { return greeting_ && greeting_->awaits_host; }
  void prepare_answer();
  void answer_if_complete();
  // Called on the heartbeat's thread.
  void beat(std::chrono::nanoseconds loop_silent);
  void order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure = false);
  bool may_finish_when_clean(bool is_last) const {
    return is_last && start_.transport == TransportKind::kLocal && !terms_.outlives_launcher;
  }
  void check_lease();
  void perform(EndingAction action);
  void report(EndingAction action);
  void finish();
  void send(const Event& event) { events_.send(event); }
  void spare(pid_t pid) { containment_->spare(pid); }

  boost::asio::io_context loop_{1};
  const SupervisorStart start_;
  BlockingPool blocking_{
      [this](std::function<void()> function) { boost::asio::post(loop_, std::move(function)); }};
  Lease lease_{LeaseLimits{}};
  CommandChannel channel_;
  ControlServer control_;
  EventSender events_{channel_, control_, [this] { on_events_lost(); }};
  StopProgress stop_;
  HostWorkers workers_;
  RankExits rank_exits_;
  Ticker ticker_{loop_, [this](std::uint64_t now_ns, std::uint64_t elapsed_ns) {
                   on_tick(now_ns, elapsed_ns);
                 }};
  SupervisorSignals supervisor_signals_{loop_, [this](int signal) { on_signal(signal); }};

  std::unique_ptr<Containment> containment_;  // There is one from Hello on.
  JobPorts ports_;
  HostDevices devices_{
      {loop_, start_.program_directory + "/ivy-probe"},
      {loop_,
       start_.program_directory + "/ivy-probe",
       start_.step_task != 0,
       {[this](const Event& event) { send(event); }, [this](pid_t pid) { spare(pid); },
        [this] { return processes_of(*containment_); }}}};
  HostStores stores_{loop_, [this](const Event& event) { send(event); },
                     [this](pid_t pid) { spare(pid); }, start_.step_task != 0};
  FrameworkServers servers_{
      {loop_,
       blocking_,
       start_,
       {[this](const Event& event) { send(event); }, [this](pid_t pid) { spare(pid); },
        [this](std::uint32_t rank) { workers_.kill(rank); },
        [this](std::uint32_t rank) { return workers_.process_of(rank); }}},
      {start_, {[this](const Event& event) { send(event); }, [this](pid_t pid) { spare(pid); }}}};
  StackCollector stacks_{loop_,
                         blocking_,
                         {[this](const Event& event) { send(event); },
                          [this] { return channel_.session().waiting_control_bytes(); },
                          [this](pid_t pid) { spare(pid); },
                          [this](HostEvidence& evidence) {
                            control_.status().observed().add_places(monotonic_ns(), evidence);
                          }}};
  JobTerms terms_;
  FinishWhen finish_when_;
  int address_checks_ = 0;
  std::vector<JobProcess> left_behind_;  // Outlived the last worker, and got TERM.
  std::optional<Greeting> greeting_;     // Until Hello is answered.
  bool must_reap_ = false;               // A sweep stopped at a process that is being started.
  Descriptor restored_lock_;             // Of the job's directory, if it was made again.
  std::atomic<bool> is_launcher_paused_{false};
  bool has_reported_delay_ = false;  // Used by the heartbeat's thread only.
  Heartbeat heartbeat_{kHeartbeat, [this](std::chrono::nanoseconds silent) { beat(silent); }};
};

Supervisor::Supervisor(const SupervisorStart& start)
    : start_(start),
      channel_(loop_, start, lease_,
               {[this](link::Frame& frame) { return on_frame(frame); },
                [this] { workers_.output().pump(); }, [this] { check_lease(); },
                [this](const std::vector<link::OutputChunk>& waiting) { on_taken_over(waiting); }}),
      control_(loop_, {[this](const Event& event) { send(event); },
                       [this](std::uint32_t rank) { return workers_.process_of(rank); }}),
      stop_(loop_,
            {[this] {
               return EndingFacts{workers_.have_ended() && !rank_exits_.awaits(), false,
                                  workers_.are_over()};
             },
             // The tree is proved empty by two passes in a row: a first "no" is asked again.
             [this] { return !containment_ || containment_->empty() || containment_->empty(); },
             [this](EndingAction action) { perform(action); }}),
      workers_(loop_, start_, {blocking_, channel_, control_, stop_.ending()},
               {[this](const Event& event) { send(event); },
                [this] {
                  stop_.check_soon();
                  rank_exits_.check_soon();
                },
                [this](std::uint32_t rank, const ExitStatus& status) {
                  return servers_.mpi.judge(rank, status);
                },
                [this](const Worker& worker) {
                  if (!worker.exit_status().success()) devices_.watch.something_failed();
                  if (!stop_.ending().stopping())
                    rank_exits_.ended(worker.rank(), worker.rejoins(), worker.exit_status());
                }}),
      rank_exits_(
          loop_, devices_.watch,
          {[this](std::uint32_t rank, std::uint32_t rejoins) { stores_.rank_gone(rank, rejoins); },
           [this](std::uint32_t rank) { return workers_.is_finished(rank); },
           [this](std::uint32_t rank) { return workers_.own_devices(rank); },
           [this](std::uint32_t rank, std::uint32_t rejoins) {
             workers_.start_again(rank, rejoins);
           },
           [this](std::uint32_t rank) { refuse_rank(rank, workers_.generation()); },
           [this] { stop_.check_soon(); }}) {}

int Supervisor::run() {
  ticker_.begin();
  supervisor_signals_.watch(start_.warden_pidfd, [this] { order_stop(0, "warden lost"); });
  if (start_.step_task != 0) {
    const auto lost = [this] {
      order_stop(terms_.grace_ns,
                 "the task of the Slurm step, or the ivyrun of this node, was killed");
    };
    const int task = open_pidfd(start_.step_task);
    if (task >= 0)
      supervisor_signals_.watch(task, lost);
    else
      boost::asio::post(loop_, lost);
  }
  // A child that ended before the signal was watched raises no signal any more.
  reap_children();
  loop_.run();
  if (events_.outcome().has_leftovers()) return kSupervisorLeftovers;
  if (!start_.tells_outcome) return kSupervisorWell;
  return events_.outcome().exit_code(!workers_.all().empty(),
                                     lease_.ended() || events_.were_lost());
}

Result<void> Supervisor::on_frame(link::Frame& frame) {
  if (frame.header.type == link::FrameType::kInput) {
    workers_.input().push(std::move(frame.payload));
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
      finish_when_.clean = may_finish_when_clean(command.start().is_last());
      terms_.max_restarts = command.start().max_restarts();
      terms_.last_generation = command.start().last_generation();
      return on_start(command.start().plan());
    case Command::kOpenStore:
      return on_open_store(command.open_store());
    case Command::kStartAgain:
      return on_start_again(command.start_again());
    case Command::kSignalWorkers:
    case Command::kStop:
    case Command::kPause:
    case Command::kFinish:
    case Command::kReplaceWorker:
    case Command::kRankGone:
    case Command::kBeginGeneration:
    case Command::kNews:
    case Command::kReadOperations:
    case Command::kCollectStacks:
      on_order(command);
      return {};
    case Command::KIND_NOT_SET:
      break;
  }
  return Error{Code::kDataLoss, "an empty command"};
}

// Carries out a command that cannot fail: it has no effect where there is nothing to do (any more).
void Supervisor::on_order(const Command& command) {
  switch (command.kind_case()) {
    case Command::kSignalWorkers:
      return workers_.send_signal(command.signal_workers().signal());
    case Command::kStop:
      return on_stop(command.stop());
    case Command::kPause:
      return lease_.paused();
    case Command::kFinish:
      return on_finish();
    case Command::kReplaceWorker:
      return rank_exits_.order(command.replace_worker());
    case Command::kRankGone:
      if (command.rank_gone().generation() == workers_.generation())
        stores_.rank_gone(command.rank_gone().rank(), command.rank_gone().rejoins());
      return;
    case Command::kBeginGeneration:
      return stores_.begin_generation(command.begin_generation().generation());
    case Command::kNews:
      return control_.status().take(command.news());
    case Command::kReadOperations:
      if (!command.read_operations().usage())
        return control_.tell_operations(command.read_operations().number(), Operations());
      // New device readings are for the next answer: nothing waits for a driver here.
      devices_.watch.sample();
      return control_.tell_operations(command.read_operations().number(),
                                      workers_.usage(devices_.watch.held()));
    case Command::kCollectStacks:
      return stacks_.collect(command.collect_stacks(), workers_.all(), workers_.group());
    case Command::kHello:
    case Command::kCheckAddress:
    case Command::kStart:
    case Command::kOpenStore:
    case Command::kStartAgain:
    case Command::KIND_NOT_SET:
      return;  // on_command() carries these out itself.
  }
}

Result<void> Supervisor::on_hello(const Hello& hello) {
  if (hello.lease_ms() > 0) lease_.set_silence(hello.lease_ms() * kNanosPerMilli);
  terms_.grace_ns = hello.grace_ms() * kNanosPerMilli;
  if (hello.outlives_launcher()) {
    terms_.outlives_launcher = true;
    events_.keep_for_takeover();
    lease_.set_outlives_launcher(true);
    channel_.allow_takeover();
  }
  if (is_looking_at_host()) return out_of_turn("Hello twice");
  if (!containment_) containment_ = make_containment(containment_request(start_));
  greeting_ = Greeting{.hello = hello, .answer = {}};
  struct Found {
    HostFacts facts;
    HostWorkers::OwnFiles own_files;
  };
  blocking_.run(
      "the file system of " + hello.working_directory(), BlockingPool::kNoDeadline,
      [hello, transport = start_.transport,
       programs = start_.program_directory](const BlockingPool::Label& label) -> Result<Found> {
        Found found{look_at_host(hello, transport, label), {}};
        label.set("the file system of " + programs);
        found.own_files = HostWorkers::find_own_files(programs);
        return found;
      },
      [this](Result<Found> found) {
        HostFacts facts;
        if (found.ok()) {
          facts = std::move(found->facts);
          servers_.mpi.set_has_pmix(found->own_files.has_pmix);
          workers_.take_own_files(std::move(found->own_files));
        } else {
          facts.set_job_directory_error(found.error().message);
        }
        add_facts(greeting_->hello, std::move(facts), ports_, greeting_->answer);
        greeting_->awaits_host = false;
        answer_if_complete();
      });
  prepare_answer();
  return {};
}

// Runs the steps that need no pool thread while one examines the host.
void Supervisor::prepare_answer() {
  const Hello& hello = greeting_->hello;
  const Result<void> token = write_token_file(start_.directory.token_file(), channel_.token());
  greeting_->answer = begin_answer(hello, *containment_, start_.directory, ports_);
  // Workers could not authenticate: not to start is better than to fail later and elsewhere.
  if (!token.ok())
    greeting_->answer.mutable_facts()->set_job_directory_error(token.error().message);
  // With accelerators this takes up to two seconds, during which all else goes on.
  devices_.discovery.describe(hello, [this](const HostFacts& devices) {
    greeting_->answer.mutable_facts()->MergeFrom(devices);
    devices_.watch.learn(devices);
    greeting_->awaits_devices = false;
    answer_if_complete();
  });
}

void Supervisor::answer_if_complete() {
  if (greeting_->awaits_host || greeting_->awaits_devices) return;
  Event event;
  *event.mutable_hello_ok() = std::move(greeting_->answer);
  greeting_.reset();
  send(event);
  // Done after the answer is sent, while the launcher makes its plan.
  boost::asio::post(loop_, [this] {
    open_control();
    write_own_grace();
    workers_.count_out_of_memory_kills(*containment_);
    containment_->settle();
  });
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

Result<void> Supervisor::on_start(const HostPlan& plan) {
  if (!containment_ || is_looking_at_host()) return out_of_turn("Start before Hello");
  // Answered, not cut off: a frame that was received is never sent again.
  if (plan.arguments().empty() || plan.workers_size() > kMaxWorkers) {
    refuse_start(plan, plan.generation());
    return {};
  }
  const bool has_workers = !workers_.all().empty();
  if (has_workers && plan.generation() == workers_.generation()) return {};
  if (has_workers || stop_.ending().stopping() || stop_.ending().reported()) {
    refuse_start(plan, plan.generation());
    return {};
  }
  start_group(plan);
  return {};
}

Result<void> Supervisor::on_start_again(const StartAgain& request) {
  if (!containment_) return out_of_turn("StartAgain before Hello");
  const bool has_workers = !workers_.all().empty();
  if (has_workers && request.generation() == workers_.generation()) return {};
  HostPlan plan = request.has_plan() ? request.plan() : workers_.plan();
  // Nothing may start beside processes that could not be ended, or after this host had a reason to
  // stop.
  const bool has_leftovers = events_.outcome().has_leftovers();
  const bool is_proved_gone = stop_.ending().reported() && !has_leftovers && stop_.reason().empty();
  const bool is_too_large = request.plan().workers_size() > kMaxWorkers;
  if (!has_workers || request.generation() < workers_.generation() || !is_proved_gone ||
      is_too_large) {
    refuse_start(plan, request.generation());
    send(refusal_report(request.generation(), !has_leftovers));
    return {};
  }
  forget_generation();
  finish_when_.clean = may_finish_when_clean(request.is_last());
  plan.set_generation(request.generation());
  for (const Variable& changed : request.environment()) {
    auto& variables = *plan.mutable_environment();
    const auto known = std::find_if(variables.begin(), variables.end(), [&](const Variable& other) {
      return other.name() == changed.name();
    });
    *(known != variables.end() ? &*known : variables.Add()) = changed;
  }
  // The input that the last generation has read does not come again: half an input misleads.
  for (WorkerSpec& spec : *plan.mutable_workers()) spec.set_standard_input(false);
  devices_.watch.await_memory({"the next attempt",
                               {},
                               [this, plan] { start_group(plan); },
                               [this, plan] {
                                 refuse_start(plan, plan.generation());
                                 send(refusal_report(plan.generation(), true));
                               }});
  return {};
}

// Makes again what a cleaner of /tmp has removed: without it no worker starts, no connection comes
// back, and ivyctl finds no job.
void Supervisor::restore_directory() {
  if (!containment_ || is_looking_at_host()) return;
  const JobDirectory& directory = start_.directory;
  if (restore_job_directory(directory, restored_lock_)) write_own_grace();
  (void)write_token_file(directory.token_file(), channel_.token());
  if (is_missing(directory.command_socket()))
    if (const Result<int> fd = listen_on_command_socket(directory); fd.ok())
      channel_.listen_on(*fd);
  open_control();
}

void Supervisor::start_group(const HostPlan& plan) {
  restore_directory();
  if (has_listening_scripts(plan)) ports_.workers.clear();
  HostPlan with_places = plan;
  servers_.mpi.begin(with_places);
  rank_exits_.begin(with_places);
  workers_.start(with_places, *containment_);
  servers_.jax.begin(with_places, workers_.group().environment);
  stop_.workers_started();
  devices_.watch.begin(plan.generation());
}

// Called when its Report has been sent: no process, open pipe or byte of it is left here.
void Supervisor::forget_generation() {
  // A cgroup that was ended by cgroup.kill is not used again: Linux 6.18 at once kills processes
  // that are later started into it from outside.
  containment_->remove();
  containment_ = make_containment(containment_request(start_));
  stores_.spare_from([this](pid_t pid) { spare(pid); });
  workers_.forget();
  boost::asio::post(loop_, [this] { containment_->settle(); });
  stop_.begin_again();
  events_.forget_generation();
}

void Supervisor::refuse_start(const HostPlan& plan, std::uint32_t generation) {
  for (const WorkerSpec& spec : plan.workers()) refuse_rank(spec.rank(), generation);
}

void Supervisor::refuse_rank(std::uint32_t rank, std::uint32_t generation) {
  Event event;
  StartFailed* failed = event.mutable_start_failed();
  failed->set_generation(generation);
  failed->set_rank(rank);
  failed->set_error(ECANCELED);
  failed->set_step("start");
  failed->set_at_ns(monotonic_ns());
  send(event);
}

void Supervisor::on_finish() {
  const bool nothing_runs =
      stop_.ending().phase() == EndingPhase::kIdle || stop_.ending().reported();
  if (nothing_runs) return finish();
  finish_when_.reported = true;
  order_stop(terms_.grace_ns, {});
}

// A lost host, which every launcher understands, is better than an exit that is never reported.
void Supervisor::on_events_lost() {
  boost::asio::post(loop_, [this] {
    if (stop_.ending().phase() == EndingPhase::kIdle || stop_.ending().reported()) return finish();
    order_stop(terms_.grace_ns, "the launcher has not acknowledged " +
                                    std::to_string(link::kMaxUnacknowledgedBytes >> 20) +
                                    " MiB of what this host had to say");
  });
}

void Supervisor::on_taken_over(const std::vector<link::OutputChunk>& waiting) {
  TakenOver taken =
      streams_taken_over(workers_.output().progress(), waiting, workers_.generation());
  taken.set_max_restarts(terms_.max_restarts);
  events_.send_again(std::move(taken));
  workers_.input().close();
}

// As a subreaper this process inherits every orphan of the job. The same sweep must not take a
// worker's status, so each child is identified before it is reaped.
void Supervisor::reap_children() {
  workers_.collect_in_order();
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    Worker* worker = workers_.find(info.si_pid);
    if (worker == nullptr && workers_.is_starting(info.si_pid)) {
      must_reap_ = true;
      break;
    }
    if (worker == nullptr) {
      int status = 0;
      const pid_t reaped = waitpid(info.si_pid, &status, WNOHANG);
      if (reaped > 0)
        control_.child_reaped(reaped, exit_status_from_wait(info.si_code, info.si_status));
      if (reaped > 0) stores_.reaped(reaped, status);
      if (reaped > 0) servers_.mpi.reaped(reaped, status);
      if (reaped > 0) servers_.jax.reaped(reaped, status);
      if (reaped > 0) devices_.watch.reaped(reaped);
      continue;
    }
    workers_.collect(*worker);
    if (is_alive(worker->state())) break;
  }
  if (stop_.ending().phase() != EndingPhase::kIdle) stop_.check_soon();
}

void Supervisor::on_stop(const Stop& stop) {
  const std::uint64_t grace_ns = stop.grace_ms() * kNanosPerMilli;
  if (!stop.interrupt() || stop_.ending().phase() != EndingPhase::kRunning)
    return order_stop(grace_ns, {}, stop.after_failure());
  devices_.watch.something_failed();
  devices_.watch.give_up();
  workers_.call_off_starts();
  workers_.collect_all();
  rank_exits_.give_up();
  stop_.order_interrupt(grace_ns);
}

void Supervisor::order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure) {
  devices_.watch.something_failed();
  devices_.watch.give_up();
  workers_.call_off_starts();
  // Reap first: a worker that has already exited is no victim of the stop.
  if (!stop_.ending().stopping()) workers_.collect_all();
  rank_exits_.give_up();
  stop_.give_reason(reason);
  // Between two generations nothing runs that a second Report could describe.
  const bool another_may_follow = workers_.generation() < terms_.last_generation;
  if (stop_.ending().reported() && another_may_follow && !stop_.reason().empty()) return finish();
  const bool is_informed = after_failure && control_.has_informed();
  stop_.order_stop(grace_ns, is_informed ? Ending::kWarningNs : 0);
}

void Supervisor::check_lease() {
  if (!lease_.ended()) return;
  if (stop_.ending().reported()) return finish();
  workers_.output().discard();
  workers_.input().close();
  order_stop(terms_.grace_ns, lease_.reason());
}

void Supervisor::perform(EndingAction action) {
  switch (action) {
    case EndingAction::kTerminate:
      if (containment_) containment_->signal_all(SIGTERM);
      return;
    case EndingAction::kTerminateLeftBehind:
      if (!containment_) return;
      left_behind_ = containment_->members();
      return containment_->signal_all(SIGTERM);
    case EndingAction::kInterrupt:
      return interrupt_groups(workers_.all());
    case EndingAction::kTerminateUninformed:
      if (containment_) terminate_uninformed(*containment_, workers_.all(), control_);
      return;
    case EndingAction::kKill:
      if (containment_) containment_->kill_all();
      return;
    case EndingAction::kReportClean:
    case EndingAction::kReportLeftovers:
      return devices_.watch.settle([this, action] { report(action); });
    case EndingAction::kNothing:
      return;
  }
}

void Supervisor::report(EndingAction action) {
  // Their ranks are gone, and the store must not meet them in the next generation.
  servers_.mpi.end();
  servers_.jax.end();
  Event event;
  Report* report = event.mutable_report();
  report->set_generation(workers_.generation());
  report->set_clean(action == EndingAction::kReportClean);
  report->set_reason(stop_.reason());
  const std::vector<JobProcess> left_behind = std::exchange(left_behind_, {});
  report->set_left_behind_count(static_cast<std::uint32_t>(left_behind.size()));
  for (std::size_t i = 0; i < std::min(left_behind.size(), kNamedProcesses); ++i)
    report->add_left_behind(left_behind[i].name);
  if (action == EndingAction::kReportLeftovers && containment_) {
    for (const JobProcess& process : containment_->members()) {
      Leftover* leftover = report->add_leftovers();
      leftover->set_pid(process.pid);
      leftover->set_name(process.name);
      leftover->set_state(std::string(1, process.state));
      leftover->set_waiting_in(process.waiting_in);
    }
  }
  send(event);
  const bool is_delivered = finish_when_.clean && report->clean() && channel_.flush_now();
  // A launcher that is suspended or gone does not fetch the report.
  const bool is_alone = finish_when_.unattached && lease_.state() != LeaseState::kAttached;
  if (is_delivered || finish_when_.reported || is_alone || lease_.ended() || events_.were_lost())
    finish();
}

void Supervisor::finish() {
  channel_.flush_now();
  stores_.end();
  servers_.mpi.end();
  servers_.jax.end();
  devices_.watch.end();
  const bool is_empty = !containment_ || containment_->empty();
  if (containment_ && is_empty) containment_->remove();
  // The warden would not remove a directory that it has not made.
  if (restored_lock_) remove_job_directory({start_.directory.path, restored_lock_.get()});
  // If a job has started, the peers need not wait while the kernel tears down this process.
  if (containment_ && is_empty && say_farewell(start_.farewell_fd))
    channel_.hang_up();
  else
    remove_job_directory(start_.directory);
  loop_.stop();
}

// The loop sends heartbeats too; these come if it hangs, and name the oldest overdue task.
void Supervisor::beat(std::chrono::nanoseconds loop_silent) {
  if (is_launcher_paused_.load(std::memory_order_relaxed)) return;
  link::Alive alive;
  if (loop_silent > 2 * kHeartbeat)
    alive.loop_silent_ns = static_cast<std::uint64_t>(loop_silent.count());
  if (const auto overdue = blocking_.overdue()) {
    alive.overdue = overdue->name;
    alive.overdue_ns = static_cast<std::uint64_t>(overdue->age.count());
  }
  const bool is_late = alive.loop_silent_ns != 0 || alive.overdue_ns != 0;
  // Once more when nothing is late any longer.
  if (is_late || has_reported_delay_) has_reported_delay_ = !channel_.send_alive(alive) || is_late;
}

void Supervisor::on_tick(std::uint64_t now_ns, std::uint64_t elapsed_ns) {
  heartbeat_.turned();
  is_launcher_paused_.store(lease_.state() == LeaseState::kPaused, std::memory_order_relaxed);
  if (std::exchange(must_reap_, false)) reap_children();
  lease_.advance(elapsed_ns);
  channel_.tick(now_ns);
  workers_.tick(now_ns, elapsed_ns);
  servers_.mpi.tick(now_ns);
  if (ticker_.count() % kTicksPerHeartbeat == 0) {
    // A suspended launcher does not read: needless heartbeats would fill its connection.
    if (lease_.state() != LeaseState::kPaused) channel_.send_heartbeat();
    channel_.flush();
    restore_directory();
    control_.tell_stall(workers_.plan().stall_seconds() * kNanosPerSecond);
  }
  events_.send_held_news();
  if (!containment_ && ticker_.age_ns(now_ns) >= nanoseconds_of(kHelloTimeout)) return finish();
  check_lease();
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return reap_children();
  // There is no launcher yet that could get the reason or acknowledge it.
  const bool has_begun = containment_ || lease_.state() != LeaseState::kWaiting;
  if (signal == SIGTERM && !has_begun) return finish();
  // The launcher, where there is one, decides what a step's signal means.
  if (start_.step_task != 0 && lease_.state() == LeaseState::kAttached) {
    Event event;  // Sent before any exit that follows from it.
    event.mutable_signalled()->set_signal(signal);
    return send(event);
  }
  if (signal != SIGTERM) return;
  finish_when_.unattached = start_.step_task == 0;
  const auto grace = read_stop_grace(start_.directory.path);
  order_stop(grace ? nanoseconds_of(*grace) : terms_.grace_ns,
             "the supervisor was asked to end (SIGTERM)");
}

}  // namespace

int run_supervisor(const SupervisorStart& start) {
  prefer_short_slices();
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  if (start.step_task != 0)
    for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGQUIT}) std::signal(signal, SIG_IGN);
  // A worker costs up to seven descriptors here; the soft limit is often 1024.
  raise_descriptor_limit();
  reserve_descriptors();
  // Pool threads create the workers. With a separate arena such a thread would get its memory page
  // by page, each with an mprotect() that interrupts the workers before their exec.
  mallopt(M_ARENA_MAX, 1);
  try {
    // Never destroyed: the process exits next, and the kernel takes everything back at once.
    auto* const supervisor = new Supervisor(start);
    // Agents and ivyctl send the signal to the process of this name, so it must be handled by
    // now.
    prctl(PR_SET_NAME, "ivy-supervisor");
    const int exit_code = supervisor->run();
    let_go_of_directory();
    return exit_code;
  } catch (const std::exception& error) {
    // Out of memory or of descriptors for the loop itself. The warden ends the workers.
    std::fprintf(stderr, "ivy-node: supervisor: %s\n", error.what());
    return 1;
  }
}

}  // namespace ivy
