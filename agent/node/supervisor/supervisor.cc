// SPDX-License-Identifier: Apache-2.0
// Supervisor owns the parts of one host's job and passes events between them: CommandChannel (the
// session with the launcher), ControlServer (the workers' control socket), Generation (the workers'
// life), JobStore and StackCollector. In this order: the launcher's commands, which
// carry_out() dispatches; the job's directory; signals, the clock and a lost launcher.
// run_supervisor() at the end is the main function of the process, which the warden forks.
#include "agent/node/supervisor/supervisor.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "agent/devices/discovery.h"
#include "agent/node/facts/address_check.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/event_sender.h"
#include "agent/node/supervisor/generation.h"
#include "agent/node/supervisor/hello.h"
#include "agent/node/supervisor/host_container.h"
#include "agent/node/supervisor/host_task.h"
#include "agent/node/supervisor/job_store.h"
#include "agent/node/supervisor/notice_watch.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "agent/node/workers/lease.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"
#include "proto/os/heartbeat.h"
#include "proto/os/process.h"
#include "proto/os/short_slice.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// At each heartbeat the supervisor also checks the progress of workers' operations.
constexpr int kTicksPerHeartbeat = kHeartbeat / kSupervisorTick;
// More addresses than a launcher needs to check concurrently.
constexpr int kMaxAddressChecks = 64;

Error out_of_turn(const char* what) { return Error{Code::kFailedPrecondition, what}; }

// An unanswered Hello, and the missing parts of the answer.
struct PendingHello {
  Hello hello;
  HelloOk answer;
  bool awaits_host = true;     // Facts from the host's and the user's files.
  bool awaits_devices = true;  // Accelerators.
  bool awaits_container = false;
};

class Supervisor final : private CommandChannelEvents,
                         private StackCollectorOwner,
                         private HostContainerEvents {
 public:
  explicit Supervisor(const SupervisorStart& start);
  int run();

 private:
  // CommandChannelEvents
  Result<void> on_frame(session::Frame& frame) override;
  void on_batch_end() override { generation_.workers().output().pump(); }
  void on_link_lost() override { check_launcher(); }
  void on_taken_over(const std::vector<session::OutputChunk>& waiting) override;
  // StackCollectorOwner
  void send_stacks(const Event& event) override { events_.send(event); }
  std::uint64_t waiting_bytes() override { return channel_.session().waiting_control_bytes(); }
  void debugger_started(pid_t pid) override { context_.containment->spare(pid); }
  void add_nccl_positions(HostEvidence& evidence) override {
    control_.status().observed().add_places(monotonic_ns(), evidence);
  }

  // HostContainerEvents
  void container_lost(const std::string& reason) override {
    generation_.order_stop(generation_.grace_ns(), reason);
  }
  void container_closed() override { generation_.finish(); }

  // Dispatches each command of the launcher; on_frame() calls it.
  Result<void> carry_out(const Command& command);
  Result<void> on_task_input(const TaskInput& input);
  Result<void> on_hello(const Hello& hello);
  void collect_facts();
  void prepare_answer();
  void open_container();
  void answer_hello_if_complete();
  Result<void> on_check_address(const CheckAddress& request);
  Result<void> on_open_store(const OpenStore& request);
  Result<void> on_start(const Start& request);
  Result<void> on_start_again(const StartAgain& request);
  void on_read_operations(const ReadOperations& request);

  bool is_examining_host() const {
    return pending_hello_ && (pending_hello_->awaits_host || pending_hello_->awaits_container);
  }
  void restore_directory();
  void write_own_grace() const;
  void open_control_socket();

  void watch_warden();
  void watch_step_task();
  void wait_signal();
  void on_signal(int signal);
  void stop_after_term();
  void wait_tick();
  void on_tick(std::uint64_t now_ns, std::uint64_t elapsed_ns);
  void check_launcher();
  // Called on the heartbeat's thread.
  void beat(std::chrono::nanoseconds loop_silent);

  EventSender events_;  // First, because the other parts refer to it.
  SupervisorContext context_;
  Lease lease_{LeaseLimits{}};
  CommandChannel channel_;
  ControlServer control_;
  JobStore store_;
  HostTasks tasks_;
  HostContainer container_;
  NoticeWatch notices_;
  Discovery discovery_;
  Generation generation_;
  StackCollector stacks_;

  std::optional<PendingHello> pending_hello_;
  int address_checks_ = 0;
  bool has_acted_on_loss_ = false;  // The workers were told to stop because an event was lost.

  boost::asio::signal_set signals_;
  boost::asio::posix::stream_descriptor warden_;
  boost::asio::posix::stream_descriptor step_task_;
  boost::asio::steady_timer tick_timer_;
  const std::uint64_t started_ns_ = monotonic_ns();
  std::uint64_t last_tick_ns_ = started_ns_;
  int ticks_ = 0;

  std::atomic<bool> is_launcher_paused_{false};
  bool has_reported_delay_ = false;  // Used by the heartbeat's thread only.
  Heartbeat heartbeat_{kHeartbeat, [this](std::chrono::nanoseconds silent) { beat(silent); }};
};

Supervisor::Supervisor(const SupervisorStart& start)
    : events_(channel_, control_),
      context_(start, events_),
      channel_(context_.loop, start, lease_, *this),
      control_(context_.loop, events_),
      store_(context_),
      tasks_(context_, channel_),
      container_(context_, *this),
      notices_(context_),
      discovery_(context_.loop, start.program_directory + "/ivy-probe"),
      generation_(context_, lease_, channel_, control_, events_, store_, tasks_, container_,
                  notices_),
      stacks_(context_.loop, context_.blocking, *this),
      signals_(context_.loop, SIGCHLD, SIGTERM, SIGUSR1),
      warden_(context_.loop),
      step_task_(context_.loop),
      tick_timer_(context_.loop) {}

int Supervisor::run() {
  wait_signal();
  wait_tick();
  watch_warden();
  if (context_.is_in_step()) watch_step_task();
  // A child that exited before signals were handled raises no further signal.
  generation_.reap_children();
  context_.loop.run();
  const JobOutcome& outcome = events_.outcome();
  if (outcome.has_leftovers()) return kSupervisorLeftovers;
  if (!context_.start.records_outcome) return kSupervisorOk;
  return outcome.exit_code(!generation_.workers().all().empty(),
                           lease_.ended() || events_.were_lost());
}

// -- The launcher's commands

Result<void> Supervisor::on_frame(session::Frame& frame) {
  if (frame.header.type == session::FrameType::kInput) {
    generation_.workers().input().push(std::move(frame.payload));
    return {};
  }
  Command command;
  if (!command.ParseFromString(frame.payload))
    return Error{Code::kDataLoss, "received an invalid command"};
  return carry_out(command);
}

// Dispatches all commands. An error means that the launcher has broken the protocol, and closes the
// link. Commands without a result have no effect if they arrive too late.
Result<void> Supervisor::carry_out(const Command& command) {
  HostWorkers& workers = generation_.workers();
  switch (command.kind_case()) {
    case Command::kTaskInput:
      return on_task_input(command.task_input());
    case Command::kHello:
      return on_hello(command.hello());
    case Command::kCheckAddress:
      return on_check_address(command.check_address());
    case Command::kOpenStore:
      return on_open_store(command.open_store());
    case Command::kStart:
      return on_start(command.start());
    case Command::kStartAgain:
      return on_start_again(command.start_again());
    case Command::kBeginGeneration:
      store_.begin_generation(command.begin_generation().generation());
      break;
    case Command::kReplaceWorker:
      generation_.replace_worker(command.replace_worker());
      break;
    case Command::kRankGone:
      if (command.rank_gone().generation() == workers.generation())
        store_.rank_exited(command.rank_gone().rank(), command.rank_gone().rejoins());
      break;
    case Command::kRankUpdates:
      control_.status().take(command.rank_updates());
      break;
    case Command::kSignalWorkers:
      workers.send_signal(command.signal_workers());
      break;
    case Command::kReadOperations:
      on_read_operations(command.read_operations());
      break;
    case Command::kCollectStacks:
      stacks_.collect(command.collect_stacks(), workers.all(), workers.group());
      break;
    case Command::kPause:
      lease_.paused();
      break;
    case Command::kStop:
      generation_.stop(command.stop());
      break;
    case Command::kFinish:
      generation_.finish_after_report();
      break;
    case Command::KIND_NOT_SET:
      return Error{Code::kDataLoss, "received an empty command"};
  }
  return {};
}

Result<void> Supervisor::on_task_input(const TaskInput& input) {
  // Tasks precede Hello, so their process may have to be excluded from the containment.
  if (!context_.containment) context_.containment = make_containment_for(context_.start);
  return tasks_.take(input);
}

Result<void> Supervisor::on_hello(const Hello& hello) {
  if (hello.lease_ms() > 0) lease_.set_silence(hello.lease_ms() * kNanosPerMilli);
  generation_.set_grace(hello.grace_ms() * kNanosPerMilli);
  if (hello.outlives_launcher()) {
    generation_.set_outlives_launcher();
    events_.keep_for_takeover();
    lease_.set_outlives_launcher(true);
    channel_.allow_takeover();
  }
  if (is_examining_host()) return out_of_turn("a second Hello");
  if (!context_.containment) context_.containment = make_containment_for(context_.start);
  notices_.begin(hello);
  pending_hello_ = PendingHello{.hello = hello, .answer = {}};
  collect_facts();
  prepare_answer();
  if (hello.has_container()) open_container();
  return {};
}

// The program's facts are those of the container.
void Supervisor::open_container() {
  pending_hello_->awaits_container = true;
  container_.open(pending_hello_->hello, [this](Result<ContainerStarted> started) {
    HostFacts& facts = *pending_hello_->answer.mutable_facts();
    if (started.ok()) {
      facts.MergeFrom(started->facts());
      facts.set_container(started->runtime());
    } else {
      facts.set_container_error(started.error().message);
      facts.set_container_fix(started.error().fix);
    }
    pending_hello_->awaits_container = false;
    answer_hello_if_complete();
  });
}

// Examines the host on a pool thread.
void Supervisor::collect_facts() {
  struct Found {
    HostFacts facts;
    HostWorkers::OwnFiles own_files;
  };
  const Hello& hello = pending_hello_->hello;
  context_.blocking.run(
      "the file system of " + hello.working_directory(), BlockingPool::kNoDeadline,
      [hello, peer = context_.start.peer, programs = context_.start.program_directory](
          const BlockingPool::Label& label) -> Result<Found> {
        Found found{inspect_host(hello, peer, label), {}};
        label.set("the file system of " + programs);
        found.own_files = HostWorkers::find_own_files(programs);
        return found;
      },
      [this](Result<Found> found) {
        HostFacts facts;
        if (found.ok()) {
          facts = std::move(found->facts);
          generation_.take_own_files(std::move(found->own_files));
        } else {
          facts.set_job_directory_error(found.error().message);
        }
        add_facts(pending_hello_->hello, std::move(facts), context_.ports, pending_hello_->answer);
        pending_hello_->awaits_host = false;
        answer_hello_if_complete();
      });
}

// Runs the steps that need no pool thread, while a pool thread examines the host.
void Supervisor::prepare_answer() {
  const Hello& hello = pending_hello_->hello;
  const JobDirectory& directory = context_.start.directory;
  const Result<void> token = write_token_file(directory.token_file(), channel_.token());
  pending_hello_->answer = begin_answer(hello, *context_.containment, directory, context_.ports);
  // Workers could not authenticate: failing now is better than failing later and elsewhere.
  if (!token.ok())
    pending_hello_->answer.mutable_facts()->set_job_directory_error(token.error().message);
  // With accelerators this takes up to two seconds, during which the loop runs.
  discovery_.describe(hello, [this](const HostFacts& found) {
    pending_hello_->answer.mutable_facts()->MergeFrom(found);
    generation_.devices().learn(found);
    pending_hello_->awaits_devices = false;
    answer_hello_if_complete();
  });
}

void Supervisor::answer_hello_if_complete() {
  const PendingHello& pending = *pending_hello_;
  if (pending.awaits_host || pending.awaits_devices || pending.awaits_container) return;
  Event event;
  *event.mutable_hello_ok() = std::move(pending_hello_->answer);
  pending_hello_.reset();
  events_.send(event);
  // After the answer was sent, while the launcher makes its plan.
  boost::asio::post(context_.loop, [this] {
    open_control_socket();
    write_own_grace();
    generation_.workers().count_out_of_memory_kills();
    context_.containment->settle();
  });
}

Result<void> Supervisor::on_check_address(const CheckAddress& request) {
  if (address_checks_ >= kMaxAddressChecks)
    return out_of_turn("too many address checks at the same time");
  ++address_checks_;
  check_address(context_.loop, request, [this, request](const AddressChecked& answer) {
    --address_checks_;
    Event event;
    *event.mutable_address_checked() = answer;
    event.mutable_address_checked()->set_address(request.address());
    event.mutable_address_checked()->set_port(request.port());
    events_.send(event);
  });
  return {};
}

Result<void> Supervisor::on_open_store(const OpenStore& request) {
  // Without addresses to listen on, it is about hosts that have joined.
  if (store_.is_open() && request.addresses().empty()) {
    store_.add_peers({request.torch_peers().begin(), request.torch_peers().end()});
    return {};
  }
  if (!context_.containment || !context_.ports.master || !context_.ports.store || store_.is_open())
    return out_of_turn("OpenStore before Hello, without ports, or twice");
  store_.open(request, context_.ports.store->port(), context_.ports.master->port());
  return {};
}

Result<void> Supervisor::on_start(const Start& request) {
  if (!context_.containment || is_examining_host()) return out_of_turn("Start before Hello");
  restore_directory();
  generation_.start(request);
  return {};
}

Result<void> Supervisor::on_start_again(const StartAgain& request) {
  if (!context_.containment) return out_of_turn("StartAgain before Hello");
  restore_directory();
  generation_.start_again(request);
  return {};
}

void Supervisor::on_read_operations(const ReadOperations& request) {
  if (!request.usage()) return control_.send_operations(request.number());
  // The new device readings are for the next answer, so that a driver cannot delay this one.
  DeviceWatch& devices = generation_.devices();
  devices.sample();
  control_.send_operations(request.number(), generation_.workers().usage(devices.held()));
}

// Sends everything that a launcher needs when it has taken the job over.
void Supervisor::on_taken_over(const std::vector<session::OutputChunk>& waiting) {
  HostWorkers& workers = generation_.workers();
  TakenOver taken = streams_taken_over(workers.output().progress(), waiting, workers.generation());
  taken.set_max_restarts(generation_.max_restarts());
  events_.send_again(std::move(taken));
  workers.input().close();
}

// -- The job's directory

// Restores files that a cleaner of /tmp has removed: without them no worker starts, no link
// reconnects, and ivyctl does not find the job.
void Supervisor::restore_directory() {
  if (!context_.containment || is_examining_host()) return;
  const JobDirectory& directory = context_.start.directory;
  if (restore_job_directory(directory, context_.directory_lock)) write_own_grace();
  (void)write_token_file(directory.token_file(), channel_.token());
  if (is_missing(directory.command_socket()))
    if (const Result<int> fd = listen_on_command_socket(directory); fd.ok())
      channel_.listen_on(*fd);
  open_control_socket();
}

void Supervisor::write_own_grace() const {
  write_stop_grace(context_.start.directory.path,
                   std::chrono::milliseconds(generation_.grace_ns() / kNanosPerMilli));
}

void Supervisor::open_control_socket() {
  // A job without a control socket runs as before; libivycomm reports what it lacks.
  (void)control_.listen(context_.start.directory.control_socket());
}

// -- Signals, the clock, and a lost launcher

// Kills the workers if the warden exits, because it would no longer clean up after this process.
void Supervisor::watch_warden() {
  if (context_.start.warden_pidfd < 0) return;
  warden_.assign(context_.start.warden_pidfd);
  warden_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) generation_.order_stop(0, "warden lost");
                     });
}

// Stops the workers if the task of the Slurm step exits.
void Supervisor::watch_step_task() {
  const auto stop = [this] {
    generation_.order_stop(generation_.grace_ns(),
                           "the task of the Slurm step, or the ivyrun of this node, was killed");
  };
  const int pidfd = open_pidfd(context_.start.step_task);
  if (pidfd < 0) return boost::asio::post(context_.loop, stop);
  step_task_.assign(pidfd);
  step_task_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [stop](const boost::system::error_code& error) {
                          if (!error) stop();
                        });
}

void Supervisor::wait_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    on_signal(signal);
    wait_signal();
  });
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return generation_.reap_children();
  // No launcher has attached yet that could receive the reason or acknowledge it.
  const bool has_begun = context_.containment || lease_.state() != LeaseState::kWaiting;
  if (signal == SIGTERM && !has_begun) return generation_.finish();
  // An attached launcher decides how to react to a signal to the step.
  if (context_.is_in_step() && lease_.state() == LeaseState::kAttached) {
    Event event;  // Sent before any exit that follows from it.
    event.mutable_signalled()->set_signal(signal);
    return events_.send(event);
  }
  if (signal != SIGTERM) return;
  // Others than ivyctl and an agent warn that this host is going to be stopped. The launcher
  // decides what the job does then.
  const bool is_warning =
      lease_.state() == LeaseState::kAttached && !is_stop_marked(context_.start.directory.path);
  const auto time_is_up = [this] {
    // If nothing runs here, the job continues without this host, or does not need it yet.
    if (generation_.is_idle()) return generation_.finish();
    stop_after_term();
  };
  if (is_warning && notices_.terminated(time_is_up)) return;
  stop_after_term();
}

void Supervisor::stop_after_term() {
  const auto written = read_stop_grace(context_.start.directory.path);
  const std::uint64_t grace_ns = written ? nanoseconds_of(*written) : generation_.grace_ns();
  constexpr const char* kReason = "the supervisor received SIGTERM";
  if (context_.is_in_step())
    generation_.order_stop(grace_ns, kReason);
  else
    generation_.order_exit(grace_ns, kReason);
}

void Supervisor::wait_tick() {
  tick_timer_.expires_after(kSupervisorTick);
  tick_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    ++ticks_;
    const std::uint64_t now_ns = monotonic_ns();
    on_tick(now_ns, now_ns - std::exchange(last_tick_ns_, now_ns));
    wait_tick();
  });
}

void Supervisor::on_tick(std::uint64_t now_ns, std::uint64_t elapsed_ns) {
  heartbeat_.turned();
  is_launcher_paused_.store(lease_.state() == LeaseState::kPaused, std::memory_order_relaxed);
  lease_.advance(elapsed_ns);
  channel_.tick(now_ns);
  generation_.tick(now_ns, elapsed_ns);
  if (ticks_ % kTicksPerHeartbeat == 0) {
    // A suspended launcher does not read, so heartbeats would only fill its connection.
    if (lease_.state() != LeaseState::kPaused) channel_.send_heartbeat();
    channel_.flush();
    restore_directory();
    control_.send_stall(generation_.workers().plan().stall_seconds() * kNanosPerSecond);
  }
  events_.send_held_updates();
  if (!context_.containment && now_ns - started_ns_ >= nanoseconds_of(kHelloTimeout))
    return generation_.finish();
  check_launcher();
}

// Stops the workers if the launcher will not come back, or if it has missed an event because it
// never acknowledges anything.
void Supervisor::check_launcher() {
  if (lease_.ended()) {
    if (generation_.is_reported()) return generation_.finish();
    HostWorkers& workers = generation_.workers();
    workers.output().discard();
    workers.input().close();
    return generation_.order_stop(generation_.grace_ns(), lease_.reason());
  }
  if (!events_.were_lost() || std::exchange(has_acted_on_loss_, true)) return;
  if (generation_.is_idle()) return generation_.finish();
  generation_.order_stop(generation_.grace_ns(),
                         "the launcher has not acknowledged " +
                             std::to_string(session::kMaxUnacknowledgedBytes >> 20) +
                             " MiB of events from this host");
}

// Sends heartbeats while the loop, which normally sends them, is busy; they name the oldest overdue
// task.
void Supervisor::beat(std::chrono::nanoseconds loop_silent) {
  if (is_launcher_paused_.load(std::memory_order_relaxed)) return;
  session::Alive alive;
  if (loop_silent > 2 * kHeartbeat)
    alive.loop_silent_ns = static_cast<std::uint64_t>(loop_silent.count());
  if (const auto overdue = context_.blocking.overdue()) {
    alive.overdue = overdue->name;
    alive.overdue_ns = static_cast<std::uint64_t>(overdue->age.count());
  }
  const bool is_late = alive.loop_silent_ns != 0 || alive.overdue_ns != 0;
  // Sent once more when no task is late any longer.
  if (is_late || has_reported_delay_) has_reported_delay_ = !channel_.send_alive(alive) || is_late;
}

// Makes the descriptor table large enough for 140 workers. Once a process has threads, the kernel
// enlarges the table only after an RCU grace period: each doubling would stop a start of many
// workers for 3 to 5 ms. The table keeps its size when the descriptor is closed.
void reserve_descriptors() {
  constexpr int kReserved = 1024;
  const Descriptor last(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, kReserved - 1));
}

// Closes all descriptors before the exit. Sockets hold the directory in which they were bound, even
// a removed one, and the last process that closes one waits until the directory's blocks are freed
// (some disks are notified immediately). That should be the warden, which exits at the same time
// and has less memory to free.
void close_descriptors() {
  constexpr unsigned kFirst = 3;
  syscall(SYS_close_range, kFirst, ~0u, 0u);  // Before Linux 5.9 the exit does it.
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
    // Never destroyed: the process exits next, and the kernel frees everything at once.
    auto* const supervisor = new Supervisor(start);
    // Agents and ivyctl send SIGTERM to the process of this name, so it must be handled by now.
    prctl(PR_SET_NAME, "ivy-supervisor");
    const int exit_code = supervisor->run();
    close_descriptors();
    return exit_code;
  } catch (const std::exception& error) {
    // Memory or descriptors are exhausted for the loop itself. The warden kills the workers.
    std::fprintf(stderr, "ivy-node: supervisor: %s\n", error.what());
    return 1;
  }
}

}  // namespace ivy
