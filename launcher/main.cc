// SPDX-License-Identifier: Apache-2.0
// ivyrun: one command starts one worker per accelerator on every host.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/node/roles/warden_role.h"
#include "launcher/job/control/job_record.h"
#include "launcher/job/core/detach.h"
#include "launcher/job/job.h"
#include "launcher/join/joiner.h"
#include "launcher/join/node_zero.h"
#include "launcher/links/choice/transport.h"
#include "launcher/links/this_host.h"
#include "launcher/links/warden_copy.h"
#include "launcher/options/activation.h"
#include "launcher/options/exec_command.h"
#include "launcher/options/options.h"
#include "launcher/plan/placement.h"
#include "launcher/slurm/allocation_watch.h"
#include "launcher/streams/child_process.h"
#include "launcher/streams/command_output.h"
#include "proto/contract/core_limit.h"
#include "proto/contract/log.h"
#include "proto/contract/resource_limit.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"
#include "proto/os/process.h"
#include "proto/os/process_title.h"
#include "proto/os/short_slice.h"

extern char** environ;

namespace {

using ivy::Diagnostic;

int complain(const ivy::Error& error) {
  Diagnostic diagnostic;
  diagnostic.id = "IVY-U001";
  diagnostic.what = error.message;
  diagnostic.fix = error.fix;
  std::fputs(ivy::render(diagnostic).c_str(), stderr);
  return ivy::kExitUsage;
}

// Signals that were ignored at our start (nohup) remain ignored.
bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Waits for signals as long as the job runs. One request may arrive twice: timeout(1) signals its
// child and then its own process group, which contains that child.
class Signals {
 public:
  // watch: null outside a Slurm allocation and a pod. nodes: null except in torchrun mode.
  Signals(boost::asio::io_context& loop, ivy::Job& job, ivy::AllocationWatch* watch,
          ivy::NodeZero* nodes)
      : job_(job), watch_(watch), nodes_(nodes), set_(loop) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT})
      if (!is_ignored(signal)) set_.add(signal);
    wait();
  }
  void stop() { set_.clear(); }

 private:
  void wait() {
    set_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      wait();
      handle(signal);
    });
  }

  // Faster than a person can press Ctrl-C again.
  static constexpr std::int64_t kEchoNs = 20'000'000;

  bool is_echo(int signal) {
    if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP && signal != SIGQUIT)
      return false;
    const std::int64_t now = ivy::monotonic_ns();
    const bool is_same = signal == last_signal_ && now - last_at_ns_ < kEchoNs;
    last_signal_ = signal;
    last_at_ns_ = now;
    return is_same;
  }

  void handle(int signal) {
    if (is_echo(signal)) return;
    switch (signal) {
      case SIGUSR1:
      case SIGUSR2:
      case SIGTERM:
        if (watch_ != nullptr && !watch_->is_pod())
          return watch_->received(signal, ivy::SignalSource::kLauncher);
        return signal == SIGTERM ? terminate() : job_.forward_signal(signal);
      case SIGTSTP:
        return job_.suspend([] { raise(SIGSTOP); });
      case SIGCONT:
        return job_.resume();
      default:
        return interrupt(signal);
    }
  }

  // All pods of a job may be deleted at the same time, which is one notice.
  void terminate() {
    if (watch_ == nullptr) return interrupt(SIGTERM);
    if (nodes_ == nullptr || nodes_->is_new_interrupt(0)) watch_->pod_terminates();
  }

  void interrupt(int signal) {
    if (nodes_ == nullptr || nodes_->is_new_interrupt(0)) job_.interrupt(signal);
  }

  ivy::Job& job_;
  ivy::AllocationWatch* const watch_;
  ivy::NodeZero* const nodes_;
  boost::asio::signal_set set_;
  int last_signal_ = 0;
  std::int64_t last_at_ns_ = 0;
};

// The warden and the supervisor of this host are exiting. If the init process never reaps, as in
// many containers, a child that is not waited for remains a zombie. The longer limit is for a
// loaded machine, the shorter one for children that are not ivyrun's.
constexpr std::int64_t kReapTimeoutNs = 500'000'000;
constexpr std::int64_t kDefaultReapTimeoutNs = 5'000'000;

// warden: the leader of its process group, to which the supervisor belongs; 0 if there is none.
bool has_own_children(pid_t warden) {
  siginfo_t child{};
  return ivy::ChildProcess::any_runs() ||
         (warden != 0 &&
          waitid(P_PGID, static_cast<id_t>(warden), &child, WEXITED | WNOHANG | WNOWAIT) == 0);
}

// Reaps children until none is left or the timeout has passed. child_ended: the blocked SIGCHLD.
void reap_for_a_while(pid_t warden, const sigset_t& child_ended) {
  const std::int64_t begin = ivy::monotonic_ns();
  for (;;) {
    pid_t ended = 0;
    while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (ended < 0) return;
    const std::int64_t timeout = has_own_children(warden) ? kReapTimeoutNs : kDefaultReapTimeoutNs;
    const std::int64_t left = begin + timeout - ivy::monotonic_ns();
    if (left <= 0) return;
    const timespec time{0, static_cast<long>(left)};
    sigtimedwait(&child_ended, nullptr, &time);
  }
}

void reap_children(pid_t warden) {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, nullptr);
  reap_for_a_while(warden, child_ended);
  if (ivy::ChildProcess::terminate_connections()) reap_for_a_while(warden, child_ended);
  if (ivy::ChildProcess::kill_connections()) reap_for_a_while(warden, child_ended);
}

// A shell checks how its child exited, so an interrupted ivyrun kills itself with the same signal.
[[noreturn]] void raise_default_action(int signal, int exit_code) {
  std::fflush(nullptr);
  std::signal(signal, SIG_DFL);
  raise(signal);
  _exit(exit_code);
}

// A process in the background has no standard input and no console.
void prepare_to_detach(ivy::JobRequest& request) {
  ivy::Options& options = request.options;
  options.input.kind = ivy::InputChoice::Kind::kNone;
  if (options.log_dir.empty()) options.log_dir = "ivyrun-" + request.identity.job_id.substr(0, 12);
  for (std::string* const path : {&options.log_dir, &options.output})
    if (!path->empty() && !path->starts_with('/')) *path = request.started_in + "/" + *path;
}

// Returns null outside a Slurm allocation and a pod.
std::unique_ptr<ivy::AllocationWatch> make_watch(boost::asio::io_context& loop,
                                                 const ivy::Options& options,
                                                 const std::optional<ivy::Allocation>& in) {
  ivy::EndSettings settings;
  settings.stop_before = options.stop_before_end;
  settings.preempt_signal = options.preempt_signal.value_or(SIGTERM);
  if (!in || !in->slurm) {
    if (!options.in_pod) return nullptr;
    settings.stop_before = options.stop_before_end.value_or(ivy::AllocationWatch::kPodGrace);
    return std::make_unique<ivy::AllocationWatch>(loop, settings);
  }
  const bool prints = options.verbose > 0 && !options.quiet;
  const bool queries = options.stop_before_end || options.requeue || prints;
  return std::make_unique<ivy::AllocationWatch>(
      loop, *in->slurm, settings, queries && !options.dry_run, prints && !options.dry_run);
}

// Runs the loop until the other nodes of torchrun mode have connected. Returns 0, or the exit code
// if the job cannot start.
int gather_nodes(boost::asio::io_context& loop, ivy::JobRequest& request, ivy::NodeZero& nodes) {
  int exit_code = 0;
  boost::asio::signal_set signals(loop);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signals.add(signal);
  const auto reject = [&](const ivy::Diagnostic& why) {
    std::fputs(ivy::render(why).c_str(), stderr);
    exit_code = why.exit_code;
    nodes.reject(why, [&] { loop.stop(); });
  };
  signals.async_wait([&](const boost::system::error_code& error, int signal) {
    if (error) return;
    const std::string called = ivy::signal_name(signal);
    const bool is_notice = signal == SIGTERM && request.options.in_pod;
    reject({.severity = ivy::Severity::kNote,
            .id = is_notice ? "IVY-R011" : "IVY-R003",
            .what = "interrupted by " + called + " on node 0 before all nodes had joined",
            .exit_code = is_notice ? ivy::kExitPreempted : 128 + signal});
  });
  nodes.gather([&](const std::optional<ivy::Diagnostic>& rejection) {
    // In a later turn, since this may be called from a connection that is then closed.
    boost::asio::post(loop, [&, rejection] {
      if (rejection) return reject(*rejection);
      request.options.hosts = nodes.host_list();
      loop.stop();
    });
  });
  loop.run();
  loop.restart();
  return exit_code;
}

// Opens node 0 in torchrun mode; returns null otherwise.
ivy::Result<std::unique_ptr<ivy::NodeZero>> open_node_zero(boost::asio::io_context& loop,
                                                           const ivy::JobRequest& request) {
  const ivy::Options& options = request.options;
  if (!options.node_rank) return std::unique_ptr<ivy::NodeZero>();
  const ivy::JoinKey key = IVY_TRY(ivy::join_key(options, request.caller));
  std::unique_ptr<ivy::NodeZero> nodes = IVY_TRY(ivy::NodeZero::open(loop, request, key));
  if (!key.is_secret && !options.quiet)
    nodes->print("warning: anyone who can reach port " + std::to_string(options.join_port) +
                 " can join this job; use the same --join-secret-file on every node");
  return nodes;
}

int run_node(const ivy::JobRequest& request) {
  boost::asio::io_context loop(1);
  const ivy::Result<ivy::JoinKey> key = ivy::join_key(request.options, request.caller);
  if (!key.ok()) return complain(key.error());
  const int exit_code = ivy::run_joiner(loop, request, *key);
  std::fflush(nullptr);
  // Name lookups may still be running, so do not run destructors.
  _exit(exit_code);
}

// node_zero: null except in torchrun mode.
[[noreturn]] void run_in_loop(boost::asio::io_context& loop, ivy::JobRequest request,
                              const std::optional<ivy::Allocation>& allocation,
                              ivy::NodeZero* node_zero) {
  int exit_code = ivy::kExitInternal;
  int death = 0;
  const auto watch = make_watch(loop, request.options, allocation);
  request.allocation_end = watch.get();
  const pid_t warden = request.node.copy ? request.node.copy->pid() : 0;
  ivy::Job job(loop, std::move(request));
  Signals signals(loop, job, watch.get(), node_zero);
  job.start([&](int code, int raise_signal) {
    exit_code = code;
    death = raise_signal;
    signals.stop();
    loop.stop();
  });
  if (watch) watch->start(job);
  ivy::run_to_the_end(loop, job);
  reap_children(warden);
  if (death != 0) raise_default_action(death, exit_code);
  std::fflush(nullptr);
  // All messages are printed and every host has exited, so no destructor needs to run.
  _exit(exit_code);
}

bool has_warden_here(const ivy::JobRequest& request) {
  return !request.options.dry_run && !request.record &&
         ivy::uses_local_transport(request.options, request.options.hosts.front());
}

// Starts the warden of the first host, if that is this host and needs a new supervisor. is_single:
// this is the only host, so no other process that this one starts, such as ssh's, may continue in
// the background and become the warden's child.
void start_warden_of(ivy::JobRequest& request) {
  if (!has_warden_here(request)) return;
  const bool is_single = request.options.hosts.size() == 1;
  request.node.copy = ivy::WardenCopy::start({request.node.path, request.identity.job_id, 0},
                                             ivy::run_warden_role, is_single);
}

int run_job(ivy::JobRequest request, const std::optional<ivy::Allocation>& allocation) {
  request.make_agent_link = ivy::agent_link_maker();
  std::unique_ptr<ivy::Detachment> detachment;
  if (request.options.detach && !request.options.dry_run) {
    auto started = ivy::Detachment::begin(
        {request.identity.job_id, request.options.log_dir, request.options.name});
    if (!started.ok()) return complain(started.error());
    detachment = std::move(started).value();
    request.detachment = detachment.get();
  }

  ivy::leave_no_core();
  start_warden_of(request);
  boost::asio::io_context loop(1);
  ivy::Result<std::unique_ptr<ivy::NodeZero>> nodes = open_node_zero(loop, request);
  if (!nodes.ok()) return complain(nodes.error());
  ivy::NodeZero* const node_zero = nodes->get();
  request.joined = node_zero;
  if (node_zero != nullptr)
    if (const int rejected = gather_nodes(loop, request, *node_zero); rejected != 0)
      return rejected;
  run_in_loop(loop, std::move(request), allocation, node_zero);
}

std::string command_of(char* const* argv) {
  std::vector<std::string> words{"ivyrun"};
  for (char* const* argument = argv + 1; *argument != nullptr; ++argument)
    words.emplace_back(*argument);
  return ivy::quoted_arguments(words);
}

// Rejects an ivyrun that is one of several tasks of a step: each would start the whole job again.
// Only the first task prints the error.
ivy::Result<void> is_started_once(const ivy::SlurmAllocation& allocation, char* const* argv) {
  if (!allocation.step || allocation.step->tasks <= 1) return {};
  if (allocation.step->task > 0) _exit(ivy::kExitUsage);
  return ivy::started_as_tasks_error(allocation, command_of(argv));
}

// Returns true if mpirun is our parent, directly or through its daemon on this host. Variables
// alone prove nothing, since a shell inside another job has them too.
bool is_started_by_mpirun() {
  const std::optional<std::string> parent =
      ivy::read_file("/proc/" + std::to_string(getppid()) + "/comm", 64);
  // Debian's programs have suffixes, such as mpirun.openmpi; orted and prted are Open MPI's
  // daemons.
  constexpr std::array<std::string_view, 5> kStarters = {"mpirun", "mpiexec", "orte", "prte",
                                                         "hydra_pmi_proxy"};
  return parent && std::ranges::any_of(kStarters, [&](std::string_view starter) {
           return parent->starts_with(starter);
         });
}

// Rejects an ivyrun that is one of several processes started by mpirun.
ivy::Result<void> is_started_once_by_mpirun(const ivy::Environment& caller, char* const* argv) {
  for (const auto& [size, rank] : {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   std::pair{"PMI_SIZE", "PMI_RANK"}}) {
    const std::string* const tasks = ivy::find_variable(caller, size);
    const std::string* const task = ivy::find_variable(caller, rank);
    if (tasks == nullptr || task == nullptr || *tasks == "1" || !is_started_by_mpirun()) continue;
    if (*task != "0") _exit(ivy::kExitUsage);
    return ivy::Error{
        ivy::Code::kInvalidArgument,
        "mpirun started ivyrun " + *tasks + " times: each of them would start the whole job",
        "run it without mpirun: " + command_of(argv)};
  }
  return {};
}

// Rejects an ivyrun that is one of several tasks of Flux or PALS. As Slurm's, their variables are
// those of tasks alone; ivyrun removes them from its own workers.
ivy::Result<void> is_started_once_by_scheduler(const ivy::Environment& caller, char* const* argv) {
  struct Tasks {
    const char* name;
    const char* size;
    const char* rank;
    const char* node;  // For torchrun mode: this node's number.
    const char* instead;
  };
  constexpr Tasks kTasks[] = {{"flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_RANK",
                               "run it inside flux alloc or flux batch, without flux run: "},
                              {"mpiexec (PALS)", "PMI_SIZE", "PALS_RANKID", "PALS_NODEID",
                               "run it in the job's script, without mpiexec: "}};
  for (const Tasks& tasks : kTasks) {
    const std::string* const size = ivy::find_variable(caller, tasks.size);
    const std::string* const rank = ivy::find_variable(caller, tasks.rank);
    if (size == nullptr || rank == nullptr || *size == "1") continue;
    if (*rank != "0") _exit(ivy::kExitUsage);
    return ivy::Error{ivy::Code::kInvalidArgument,
                      std::string(tasks.name) + " started ivyrun " + *size +
                          " times: each of them would start the whole job",
                      std::string(tasks.instead) + command_of(argv) +
                          "\nor start one task on each node, with --nnodes N --node-rank $" +
                          tasks.node + " --master-addr HOST0"};
  }
  return {};
}

// srun and mpirun would start that many tasks, but ivyrun starts one worker per accelerator.
void note_tasks_per_node(const ivy::Environment& caller, ivy::Options& options) {
  const std::string* const tasks = ivy::find_variable(caller, "SLURM_NTASKS_PER_NODE");
  if (tasks == nullptr || *tasks == "1" || options.num_proc || options.per_host.written) return;
  options.notes.push_back("Slurm's --ntasks-per-node=" + *tasks +
                          " does not set the number of workers: use --nproc-per-node " + *tasks);
}

// Reads files, and runs schedulers' programs with the environment of the shell, in which they work.
class SchedulerInputs final : public ivy::AllocationInputs {
 public:
  explicit SchedulerInputs(const ivy::Environment& caller) : caller_(caller) {}
  ivy::Result<std::string> file(const std::string& path) override {
    return ivy::read_hostfile(path);
  }
  ivy::Result<std::string> program(const std::vector<std::string>& arguments) override {
    ivy::CommandRequest request;
    request.name = ivy::joined(arguments, " ");
    request.arguments = arguments;
    request.environment = caller_;
    request.deadline = kDeadline;
    request.max_bytes = ivy::kMaxHostListBytes;
    return ivy::command_output_at_start(std::move(request));
  }
  std::uint32_t user_id() override { return geteuid(); }

 private:
  // A busy broker answers late, but a job should not wait for a dead one.
  static constexpr std::chrono::seconds kDeadline{30};
  const ivy::Environment& caller_;
};

// --hosts-from: runs the command.
ivy::Result<void> list_hosts(const ivy::Environment& caller, ivy::Options& options) {
  if (options.hosts_from.empty()) return {};
  ivy::Result<std::string> output =
      ivy::command_output_at_start(ivy::hosts_from_request(options.hosts_from, caller));
  if (!output.ok()) {
    ivy::Error error = output.error();
    if (error.fix.empty()) error.fix = "try the command in a shell: " + options.hosts_from;
    return error;
  }
  options.hosts = IVY_TRY(ivy::parse_command_hosts(*output));
  options.listed_hosts = options.hosts;
  options.host_source = "--hosts-from";
  return ivy::check_min_hosts(options);
}

// Finds the allocation in which we run; its hosts become the job's unless other hosts are meant.
ivy::Result<std::optional<ivy::Allocation>> use_allocation(const ivy::Environment& caller,
                                                           char* const* argv,
                                                           ivy::Options& options) {
  // In torchrun mode the hosts are those on which nodes were started.
  if (options.node_rank) return std::optional<ivy::Allocation>{};
  const bool wants_end = options.stop_before_end || options.requeue;
  const bool ignores = ivy::ignores_allocation(options);
  // Each task of a step would fail in the same way, so this precedes what can fail.
  IVY_CHECK(is_started_once_by_scheduler(caller, argv));
  const bool is_in_slurm = ivy::is_in_slurm(caller);
  SchedulerInputs inputs(caller);
  ivy::Result<std::optional<ivy::Allocation>> read = std::optional<ivy::Allocation>();
  // Slurm's variables tell whether we are one of several tasks, and when the time is over.
  if (!ignores || is_in_slurm) read = ivy::find_allocation(caller, inputs);
  // A broken allocation is an error only for a job that uses it. Hosts that the user has named are
  // reached without it, except in Slurm.
  const bool may_ignore = ignores || (!options.hosts.empty() && !is_in_slurm);
  if (!read.ok() && (!may_ignore || wants_end)) return read.error();
  const std::optional<ivy::Allocation> found = read.ok() ? std::move(read).value() : std::nullopt;
  const bool is_slurms = found && found->slurm;
  if (!is_slurms && wants_end && (options.requeue || !options.in_pod))
    return ivy::Error{ivy::Code::kInvalidArgument,
                      std::string(options.requeue ? "--requeue" : "--stop-before-end") +
                          " works only in Slurm jobs (SLURM_JOB_ID is not set)",
                      "leave it out, or call ivyrun inside sbatch or salloc"};
  if (is_slurms) IVY_CHECK(is_started_once(*found->slurm, argv));
  if (!is_slurms || !found->slurm->step) IVY_CHECK(is_started_once_by_mpirun(caller, argv));
  if (ignores && !wants_end) return std::optional<ivy::Allocation>{};
  if (!found || ignores) return found;
  const auto is_present = [](const std::string& name) {
    ivy::Host host;
    host.name = name;
    return ivy::is_this_host(host);
  };
  IVY_CHECK(ivy::place_in_allocation(*found, is_present, options));
  note_tasks_per_node(caller, options);
  return found;
}

ivy::Result<void> fits_slurm(const ivy::Options& options) {
  if (!ivy::uses_srun(options, options.hosts.front())) return {};
  if (!options.allocation)
    return ivy::Error{ivy::Code::kInvalidArgument,
                      "--transport slurm: this is not a Slurm allocation (SLURM_JOB_ID is not set)",
                      "start ivyrun inside sbatch or salloc, or leave out --transport"};
  // Hosts dial back to the launcher that started them, and do not know another one.
  if (options.detach && options.lease)
    return ivy::Error{ivy::Code::kInvalidArgument,
                      "--detach --lease: on hosts of " + options.allocation->name() +
                          " a job cannot outlive its launcher",
                      "leave out --lease: the batch script runs as long as its job"};
  return {};
}

// Applies --include and --exclude, whatever the source of the hosts.
ivy::Result<void> pick_hosts(ivy::Options& options) {
  if (!options.include.empty()) {
    ivy::Result<std::vector<ivy::Host>> left = ivy::included_hosts(options.include, options.hosts);
    if (!left.ok()) return left.error().context("--include");
    options.hosts = std::move(left).value();
  }
  if (options.exclude.empty()) return {};
  ivy::Result<std::vector<ivy::Host>> left = ivy::hosts_without(options.exclude, options.hosts);
  if (!left.ok()) return left.error().context("--exclude");
  options.hosts = std::move(left).value();
  return {};
}

// Determines the job's hosts, in rank order.
ivy::Result<void> resolve_hosts(ivy::Options& options) {
  std::vector<ivy::Host>& hosts = options.hosts;
  if (options.transport == ivy::TransportChoice::kExec)
    IVY_CHECK(ivy::check_exec_hosts(options.exec_command, options.ssh_port, hosts));
  if (hosts.empty()) hosts.emplace_back().name = "localhost";
  IVY_CHECK(pick_hosts(options));
  if (!options.node_rank) IVY_CHECK(ivy::check_min_hosts(options));
  // If no host comes up, an older list must not be mistaken for the result of this run.
  const std::string& healthy = options.healthy_hostfile;
  if (!healthy.empty() && !ivy::overwrite(healthy, ""))
    return ivy::errno_error(ivy::Code::kPermissionDenied, healthy, errno)
        .context("--healthy-hostfile");
  if (options.doctor && hosts.size() > 1 && !options.min_nodes) {
    // Each host that does not come up is a separate finding.
    options.min_nodes = 1;
    options.num_nodes = options.num_nodes.value_or(static_cast<int>(hosts.size()));
  }
  return ivy::cut_to_nodes(options);
}

// --fetch: rejects directories that cannot be written, hours before they are needed.
ivy::Result<void> check_fetch_directories(const ivy::Options& options) {
  for (const ivy::FetchRule& rule : options.fetch) {
    std::string existing = rule.directory;
    struct stat status {};
    while (stat(existing.c_str(), &status) != 0 && errno == ENOENT && existing != "/")
      existing = existing.substr(0, std::max<std::size_t>(existing.rfind('/'), 1));
    if (access(existing.c_str(), W_OK | X_OK) == 0 && S_ISDIR(status.st_mode)) continue;
    const int why = S_ISDIR(status.st_mode) ? errno : ENOTDIR;
    return ivy::errno_error(ivy::Code::kInvalidArgument,
                            "--fetch: cannot create files in " + rule.directory, why);
  }
  return {};
}

int run(ivy::JobRequest request, const std::optional<ivy::Allocation>& allocation) {
  ivy::Options& options = request.options;
  const ivy::Result<std::string> here = ivy::current_directory();
  if (!here.ok() && options.working_directory.empty()) return complain(here.error());
  request.started_in = here.ok() ? *here : options.working_directory;
  if (options.working_directory.empty()) options.working_directory = request.started_in;
  if (const ivy::Result<void> resolved = resolve_hosts(options); !resolved.ok())
    return complain(resolved.error());
  if (options.transport == ivy::TransportChoice::kLocal) {
    for (const ivy::Host& host : options.hosts) {
      if (ivy::is_this_host(host)) continue;
      return complain(ivy::Error{ivy::Code::kInvalidArgument,
                                 "--transport local: " + host.name + " is not this machine",
                                 "leave out --transport, or use --fake-hosts N to try a job of "
                                 "several hosts on one"});
    }
  }
  if (const ivy::Result<void> fits = fits_slurm(options); !fits.ok()) return complain(fits.error());
  if (const ivy::Result<void> allowed = ivy::keep_to_policy(options); !allowed.ok())
    return complain(allowed.error());
  if (ivy::program_directory().empty() && access("/proc/self/exe", F_OK) != 0)
    return complain(ivy::Error{ivy::Code::kNotFound,
                               "/proc is not mounted: ivyrun cannot find ivy-node without it",
                               "mount -t proc proc /proc"});
  if (access(request.node.path.c_str(), X_OK) != 0)
    return complain(ivy::Error{ivy::Code::kNotFound,
                               "ivy-node is not in ivyrun's directory: " + request.node.path,
                               "build or install both"});

  if (const ivy::Result<void> usable = check_fetch_directories(options); !usable.ok())
    return complain(usable.error());

  if (options.node_rank.value_or(0) > 0) return run_node(request);
  if (options.detach && !options.dry_run) prepare_to_detach(request);
  return run_job(std::move(request), allocation);
}

// `ivyctl attach` starts ivyrun in this way if a job has outlived its launcher.
int resume(const std::string& record_path, const ivy::Environment& caller,
           const ivy::WorkerLimits& limits) {
  ivy::Result<ivy::ctl::JobRecord> read = ivy::read_job_record(record_path);
  if (!read.ok()) return complain(read.error());
  ivy::JobRequest request;
  request.options = ivy::recorded_options(read->options());
  request.options.hosts = ivy::recorded_hosts(*read);
  request.caller = caller;
  request.limits = limits;
  request.node = ivy::node_program();
  request.identity = {read->job_id(), read->token()};
  request.started_in = read->started_in();
  request.timeout_passed = ivy::time_since_start(*read);
  request.record = std::move(read).value();
  return run_job(std::move(request), std::nullopt);
}

// --activate: sets the environment's variables in this process and thereby in everything that it
// starts.
ivy::Result<void> activate(ivy::Options& options, ivy::Environment& caller) {
  if (options.activate.empty()) return {};
  ivy::Result<ivy::Activation> found = ivy::find_activation(options.activate, caller);
  if (!found.ok()) return found.error().context("--activate");
  for (const ivy::EnvVariable& variable : found->set)
    setenv(variable.name.c_str(), variable.value.c_str(), 1);
  for (const std::string& name : found->unset) unsetenv(name.c_str());
  if (options.python.empty()) options.python = found->python;
  caller = ivy::environment_of(environ);
  return {};
}

// --stage-venv: activates ./.venv if no environment is active, so that this machine uses the same
// one as the others; or finds the project of --stage-venv=uv.
ivy::Result<void> choose_environment(ivy::Options& options, const ivy::Environment& caller) {
  if (options.stage_venv == ivy::StageVenv::kNone) return {};
  std::string directory = options.working_directory;
  if (directory.empty()) directory = IVY_TRY(ivy::current_directory());
  if (options.stage_venv == ivy::StageVenv::kUv) {
    const std::string from = directory;
    while (access((directory + "/uv.lock").c_str(), F_OK) != 0) {
      if (directory.empty())
        return ivy::Error{
            ivy::Code::kNotFound,
            "--stage-venv=uv: there is no uv.lock in " + from + " or a directory above it",
            "create it with `uv lock`"};
      directory.resize(directory.rfind('/') == std::string::npos ? 0 : directory.rfind('/'));
    }
    options.uv_project = directory;
    directory += "/.venv";
    // This machine uses the project's environment as it is.
    if (options.activate.empty() && options.python.empty() &&
        access((directory + "/pyvenv.cfg").c_str(), F_OK) == 0)
      options.activate = directory;
    return {};
  }
  const bool is_chosen = !options.activate.empty() || !options.python.empty() ||
                         ivy::find_variable(caller, "IVY_PYTHON") != nullptr ||
                         ivy::find_variable(caller, "VIRTUAL_ENV") != nullptr ||
                         ivy::find_variable(caller, "CONDA_PREFIX") != nullptr;
  if (!is_chosen && access((directory + "/.venv/pyvenv.cfg").c_str(), F_OK) == 0)
    options.activate = directory + "/.venv";
  return {};
}

// Returns what the pod shows of itself; nothing outside of Kubernetes.
ivy::PodFacts own_pod(const ivy::Environment& caller) {
  constexpr std::size_t kMaxHostsFileBytes = 1u << 20;
  if (!ivy::may_be_pod(caller)) return {};
  return ivy::pod_facts(
      caller, {ivy::own_host_name(), ivy::read_file("/etc/hosts", kMaxHostsFileBytes).value_or(""),
               getpid(), getppid()});
}

// Returns the caller's limits; call it before ivyrun changes its own.
ivy::WorkerLimits callers_limits() {
  // The kernel's default, which is meant for programs that use select(), is too low for a job of
  // many ranks.
  constexpr std::uint64_t kDefaultFiles = 1024;
  constexpr std::uint64_t kRaisedFiles = 65536;
  ivy::WorkerLimits limits;
  const mode_t mask = umask(0);
  umask(mask);
  limits.set_umask(mask);
  limits.set_nice(getpriority(PRIO_PROCESS, 0));
  for (const ivy::ResourceName& resource : ivy::resource_names()) {
    rlimit limit{};
    if (!resource.travels ||
        getrlimit(static_cast<__rlimit_resource>(resource.number), &limit) != 0)
      continue;
    ivy::SoftLimit& soft = *limits.add_soft();
    soft.set_resource(static_cast<std::uint32_t>(resource.number));
    soft.set_is_raised(resource.number == RLIMIT_NOFILE && limit.rlim_cur == kDefaultFiles);
    soft.set_value(soft.is_raised() ? kRaisedFiles : limit.rlim_cur);
  }
  return limits;
}

// --rlimit: replaces the caller's limits, or adds others.
void set_limits(const std::vector<ivy::RequestedLimit>& requested, ivy::WorkerLimits& limits) {
  for (const ivy::RequestedLimit& request : requested) {
    auto& all = *limits.mutable_soft();
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const ivy::SoftLimit& limit) {
                               return static_cast<int>(limit.resource()) == request.resource;
                             }),
              all.end());
    ivy::SoftLimit& soft = *limits.add_soft();
    soft.set_resource(static_cast<std::uint32_t>(request.resource));
    soft.set_value(request.value);
    soft.set_is_typed(true);
  }
}

// Names limits of this shell that other hosts do not get (ResourceName::travels), because their
// user may have set them for the job.
void note_limits_that_stay(ivy::Options& options) {
  std::vector<std::string> names;
  for (const char* name : {"as", "cpu", "data"}) {
    const ivy::ResourceName& resource = *ivy::find_resource(name);
    rlimit limit{};
    const bool is_set = getrlimit(static_cast<__rlimit_resource>(resource.number), &limit) == 0 &&
                        limit.rlim_cur != RLIM_INFINITY;
    const bool is_typed = std::any_of(
        options.limits.begin(), options.limits.end(),
        [&](const ivy::RequestedLimit& typed) { return typed.resource == resource.number; });
    if (is_set && !is_typed)
      names.push_back(std::string(name) + " " + ivy::limit_text(resource, limit.rlim_cur));
  }
  if (names.empty()) return;
  const bool has_others =
      std::any_of(options.hosts.begin(), options.hosts.end(),
                  [](const ivy::Host& host) { return !ivy::is_this_host(host); });
  if (has_others)
    options.notes.push_back("limits of this shell that other hosts do not get: " +
                            ivy::joined(names, ", ") + " (set them there with --rlimit)");
}

int launch(int argc, char** argv) {
  ivy::reserve_title_buffer(argv);
  ivy::prefer_short_slices();
  std::signal(SIGPIPE, SIG_IGN);
  const ivy::WorkerLimits limits = callers_limits();
  ivy::raise_descriptor_limit();  // Each host needs a few descriptors.
  ivy::Environment caller = ivy::environment_of(environ);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // An internal flag, so it appears in no table and no help.
  if (arguments.size() == 2 && arguments[0] == "--resume")
    return resume(arguments[1], caller, limits);
  ivy::Result<ivy::ParsedCommandLine> parsed =
      ivy::parse_command_line(arguments, caller, ivy::read_hostfile, own_pod(caller));
  if (!parsed.ok()) return complain(parsed.error());
  if (!parsed->text_to_print.empty()) {
    std::fputs(parsed->text_to_print.c_str(), parsed->exit_code == 0 ? stdout : stderr);
    return parsed->exit_code;
  }
  ivy::log::set_verbosity(parsed->options.verbose);
  if (const ivy::Result<void> chosen = choose_environment(parsed->options, caller); !chosen.ok())
    return complain(chosen.error());
  if (const ivy::Result<void> active = activate(parsed->options, caller); !active.ok())
    return complain(active.error());
  if (const ivy::Result<void> listed = list_hosts(caller, parsed->options); !listed.ok())
    return complain(listed.error());
  const ivy::Result<std::optional<ivy::Allocation>> allocation =
      use_allocation(caller, argv, parsed->options);
  if (!allocation.ok()) return complain(allocation.error());
  ivy::JobRequest request;
  request.identity = ivy::make_job_identity();
  request.node = ivy::node_program();
  request.options = std::move(parsed->options);
  request.caller = std::move(caller);
  request.limits = limits;
  set_limits(request.options.limits, *request.limits);
  note_limits_that_stay(request.options);
  return run(std::move(request), *allocation);
}

}  // namespace

int main(int argc, char** argv) {
  ivy::unblock_inherited_signals();
  try {
    return launch(argc, argv);
  } catch (const std::exception& error) {
    // While a job runs, run_to_the_end() handles exceptions.
    Diagnostic diagnostic;
    diagnostic.id = "IVY-X001";
    diagnostic.what = std::string("internal error in ivyrun: ") + error.what();
    diagnostic.fix = "if memory and limits (ulimit -a) suffice, report this as a bug";
    std::fputs(ivy::render(diagnostic).c_str(), stderr);
    return ivy::kExitInternal;
  }
}
