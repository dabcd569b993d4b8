// SPDX-License-Identifier: Apache-2.0
// A generation, in this order: start() and begin_all() create the Worker objects, carry_out()
// starts their processes on the pool (Start::run()), conclude() takes them over on the loop, and
// watch() waits for their exits. An exit calls collect(), which takes the times of all exits before
// it reaps the worker (collect_in_order()). Generation (generation.cc) owns this object, starts the
// generations, and decides what follows from an exit.
#include "agent/node/supervisor/host_workers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "agent/node/hang/rank_usage.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/workers/python_hook.h"
#include "proto/contract/resource_limit.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

// The kernel counts a kill before the process has exited; a busy machine reaps it later.
constexpr std::uint64_t kKillSampleNs = kNanosPerSecond;
// How long log files of exited workers may wait for a file system that accepts no more data. There
// is no limit while workers run.
constexpr std::uint64_t kLogTimeoutNs = 60 * kNanosPerSecond;
constexpr std::uint64_t kLogTimeoutAfterStopNs = 5 * kNanosPerSecond;

std::vector<std::string> mpi_exec_words(const MpiPlan& mpi, const std::string& program_directory,
                                        const std::string& job_directory) {
  std::vector<std::string> words = {program_directory + "/ivy-node", "mpi-exec", "--directory",
                                    job_directory};
  if (mpi.pmi()) words.push_back("--pmi");
  if (mpi.pmix()) words.push_back("--pmix");
  return words;
}

std::optional<SpawnLimits> limits_of(const HostPlan& plan) {
  if (!plan.has_limits()) return std::nullopt;
  SpawnLimits limits{plan.limits().umask(), plan.limits().nice()};
  for (const SoftLimit& limit : plan.limits().soft())
    if (limit.resource() < SpawnLimits::kResources) limits.soft[limit.resource()] = limit.value();
  return limits;
}

// Names limits that this host does not allow: programs in Fortran, for example, fault without a
// large stack.
std::string limits_note(const WorkerLimits& limits) {
  std::vector<std::string> texts;
  for (const SoftLimit& limit : limits.soft()) {
    const ResourceName* const resource = find_resource(static_cast<int>(limit.resource()));
    rlimit allowed{};
    if (resource == nullptr || limit.is_raised() ||
        getrlimit(static_cast<__rlimit_resource>(resource->number), &allowed) != 0)
      continue;
    if (limit.value() <= allowed.rlim_max) continue;
    texts.push_back(std::string(resource->name) + " " + limit_text(*resource, allowed.rlim_max) +
                    " instead of " + limit_text(*resource, limit.value()) +
                    (limit.is_typed() ? " (--rlimit)" : ""));
  }
  if (texts.empty()) return {};
  return "workers have a smaller limit here than where ivyrun was started: " + joined(texts, ", ") +
         "; the hard limit (ulimit -H) of this host allows no more";
}

// Ignores errors: a worker that misses a file reports it.
void write_plan_files(const HostPlan& plan, const JobDirectory& directory) {
  for (const NamedText& file : plan.files())
    (void)write_whole(directory.path + "/" + file.name(), file.text());
}

}  // namespace

struct HostWorkers::Start {
  BlockingPool::TaskId task = 0;
  std::vector<std::uint32_t> indexes;  // Indexes into workers_; used by the loop only.
  std::vector<std::unique_ptr<WorkerLaunch>> launches;

  std::mutex mutex;  // Guards the next three members, and begin() of the launches.
  bool is_cancelled = false;
  bool has_begun = false;   // A process has been created.
  bool is_forking = false;  // Unknown children may be workers.

  std::shared_ptr<PreloadServer> preload;  // Forks the workers; null without --preload.
  std::string preload_failure;             // Why it has not; for the loop when this has run.

  bool cancelled() {
    const std::lock_guard<std::mutex> lock(mutex);
    return is_cancelled;
  }

  // Runs on a pool thread. All processes are created before the first is waited for.
  void run(const BlockingPool::Label& label) {
    for (const auto& launch : launches) launch->find_program(label);
    if (preload != nullptr) {
      const Result<void> forked = fork_all(label);
      // Otherwise begin() creates the processes that are missing.
      if (!forked.ok() && forked.error().code != Code::kCancelled)
        preload_failure = forked.error().message;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const auto& launch : launches) {
        if (is_cancelled && launch->pid() < 0) launch->fail(kStopStep, ECANCELED);
        launch->begin();
        has_begun = has_begun || launch->pid() > 0;
      }
    }
    for (const auto& launch : launches) launch->await(label);
  }

  Result<void> fork_all(const BlockingPool::Label& label) {
    const auto is_stopped = [this] { return cancelled(); };
    const auto server = preload->lock();
    std::vector<WorkerLaunch*> forked;
    std::vector<ForkedWorker> workers;
    for (const auto& launch : launches) {
      const SpawnRequest* const request = launch->request_fork();
      if (request == nullptr) continue;
      forked.push_back(launch.get());
      workers.push_back({request, {}});
    }
    if (workers.empty()) return {};
    IVY_CHECK(preload->prepare(workers.front().request->executable, is_stopped, label));
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (is_cancelled) return {};
      has_begun = is_forking = true;
    }
    const Result<void> done = preload->fork(workers, is_stopped);
    const std::lock_guard<std::mutex> lock(mutex);
    is_forking = false;
    for (std::size_t i = 0; i < workers.size(); ++i)
      if (workers[i].result.ok() || !workers[i].result.failure.step.empty())
        forked[i]->take_forked(std::move(workers[i].result));
    return done;
  }
};

HostWorkers::OwnFiles HostWorkers::find_own_files(const std::string& program_directory) {
  read_own_program();
  return {own_package(program_directory), own_hook(program_directory),
          own_nccl_profiler(program_directory),
          access((program_directory + "/ivy-pmix").c_str(), X_OK) == 0};
}

HostWorkers::HostWorkers(SupervisorContext& context, CommandChannel& channel,
                         ControlServer& control, const HostContainer& container,
                         const Ending& ending, HostWorkersEvents& owner)
    : supervisor_(context),
      channel_(channel),
      control_(control),
      container_(container),
      ending_(ending),
      owner_(owner),
      output_(make_output()),
      input_(context.loop, channel.session(), *this) {}

std::unique_ptr<OutputPump> HostWorkers::make_output() {
  OutputPumpEvents& owner = *this;
  return std::make_unique<OutputPump>(supervisor_.loop, channel_.session(), owner);
}

void HostWorkers::log_failed(const std::string& text) {
  if (std::exchange(log_warned_, true)) return;
  Event event;
  event.mutable_note()->set_warning(true);
  event.mutable_note()->set_text(text + "; this host's log files are incomplete from here on");
  send(event);
}

WorkerGroup HostWorkers::group_of(const ProcessorShare& share) const {
  WorkerGroup group;
  group.generation = plan_.generation();
  group.arguments.assign(plan_.arguments().begin(), plan_.arguments().end());
  group.working_directory = plan_.working_directory();
  group.log_directory = plan_.log_directory();
  Environment environment =
      container_.is_used()
          ? container_.environment()
          : inherited_environment(environ, {plan_.unset().begin(), plan_.unset().end()});
  group.container_enter = container_.enter_words(plan_.working_directory());
  for (const Variable& variable : plan_.environment())
    set_variable(environment, variable.name(), variable.value());
  append_package(environment, own_files_.package);
  add_evidence_variables(environment, supervisor_.start.directory, plan_.generation());
  add_nccl_profiler(environment, own_files_.nccl_profiler);
  if (plan_.mpi().pmi() || plan_.mpi().pmix())
    group.mpi_exec = mpi_exec_words(plan_.mpi(), supervisor_.start.program_directory,
                                    supervisor_.start.directory.path);
  group.node_program = supervisor_.start.program_directory + "/ivy-node";
  group.own_sessions = share.own_sessions;
  group.limits = limits_of(plan_);
  group.python_hook = plan_.python_hook() &&
                      add_python_hook(environment, own_files_.hook, supervisor_.start.directory);
  group.environment = std::make_shared<SharedEnvironment>(std::move(environment));
  return group;
}

void HostWorkers::start(const HostPlan& plan) {
  plan_ = plan;
  control_.begin(layout_of(plan_));
  count_out_of_memory_kills();
  context_.emplace(WorkerContext{supervisor_.loop, *supervisor_.containment,
                                 supervisor_.start.directory, supervisor_.start.job_id,
                                 supervisor_.start.host, *output_, input_, control_.path(), *this});
  write_plan_files(plan_, supervisor_.start.directory);
  std::vector<std::uint32_t> readers;
  for (const WorkerSpec& spec : plan_.workers())
    if (spec.standard_input()) readers.push_back(spec.rank());
  if (readers.empty()) input_.close();
  input_.expect(readers);
  begin_all();
}

void HostWorkers::begin_all() {
  const ProcessorShare share =
      share_of(static_cast<std::size_t>(plan_.workers_size()), own_processor_count());
  apply_share(share);
  group_ = group_of(share);
  if (const std::string note = limits_note(plan_.limits()); !note.empty()) {
    Event event;
    event.mutable_note()->set_text(note);
    send(event);
  }
  choose_preload();
  auto start = std::make_shared<Start>();
  for (const WorkerSpec& spec : plan_.workers()) {
    start->indexes.push_back(static_cast<std::uint32_t>(workers_.size()));
    // On a spare that replaces a lost host, the ranks take the places of its processes.
    if (spec.rejoins() > 0) control_.worker_starts_again(spec.rank(), spec.rejoins());
    workers_.push_back(std::make_unique<Worker>(*context_, spec.rank(), spec.rejoins()));
    start->launches.push_back(workers_.back()->prepare(group_, spec));
  }
  carry_out(std::move(start));
  // The file is read only for messages, long after the start.
  if (group_.python_hook) write_rank_hosts(plan_, supervisor_.start.directory);
}

// Keeps the fork server of the last generation if it can fork these workers as well.
void HostWorkers::choose_preload() {
  if (!plan_.has_preload()) return end_preload();
  Result<PreloadCommand> command =
      preload_command(plan_, group_.environment->variables, supervisor_.start.directory.path);
  if (!command.ok()) return preload_failed("the workers " + command.error().message);
  command->limits = group_.limits;
  if (preload_ != nullptr && serves(preload_->command(), *command)) return;
  end_preload();
  if (has_preload_failed_) return;
  preload_ = std::make_shared<PreloadServer>(
      std::move(command).value(),
      Environment{{"IVY_JOB_ID", supervisor_.start.job_id},
                  {"IVY_HOST_INDEX", std::to_string(supervisor_.start.host)}});
}

void HostWorkers::preload_failed(const std::string& why) {
  end_preload();
  if (std::exchange(has_preload_failed_, true)) return;
  const auto& modules = plan_.preload().modules();
  Event event;
  event.mutable_note()->set_warning(true);
  event.mutable_note()->set_text(
      "--preload " + joined(std::vector<std::string>(modules.begin(), modules.end()), ",") + ": " +
      why + "; workers start in the usual way");
  send(event);
}

void HostWorkers::preload_reaped(pid_t pid) {
  if (preload_ != nullptr) preload_->reaped(pid);
}

void HostWorkers::spare_preload() {
  if (preload_ != nullptr && preload_->pid() > 0) supervisor_.containment->spare(preload_->pid());
}

void HostWorkers::end_preload() {
  if (preload_ != nullptr) preload_->end();
  preload_.reset();
}

// Has no deadline: a slow file system is reported, and a stop cancels the start. Giving up here
// would end the healthy ranks too.
void HostWorkers::carry_out(std::shared_ptr<Start> start) {
  starts_.push_back(start);
  start->preload = preload_;
  start->task = supervisor_.blocking.run(
      "the file system of " + group_.working_directory, BlockingPool::kNoDeadline,
      [start](const BlockingPool::Label& label) -> Result<void> {
        start->run(label);
        return {};
      },
      [this, start](const Result<void>& done) {
        // The pool has no thread for it, so no process was created.
        if (!done.ok())
          for (const auto& launch : start->launches) launch->fail("start", EAGAIN);
        conclude(start);
      });
}

void HostWorkers::conclude(const std::shared_ptr<Start>& start) {
  std::erase(starts_, start);
  for (std::size_t i = 0; i < start->indexes.size(); ++i)
    watch(start->indexes[i], *start->launches[i]);
  if (start->preload != nullptr) {
    // Its containment needs no proof that it is empty while this start is in progress.
    spare_preload();
    if (!start->preload_failure.empty() && start->preload == preload_)
      preload_failed(start->preload_failure);
    if (!owner_.may_start_again()) end_preload();
  }
  owner_.workers_changed();
}

// Takes over the process and waits for its exit.
void HostWorkers::watch(std::uint32_t index, WorkerLaunch& launch) {
  Worker& started = *workers_[index];
  started.finish_start(group_, launch);
  if (!is_alive(started.state())) return could_not_start(index);
  control_.worker_started(started.rank(), started.pid());
  exits_->watch(started.pidfd(), index);
}

void HostWorkers::could_not_start(std::uint32_t index) {
  JobStatus& status = control_.status();
  if (status.set(workers_[index]->rank(), ended_status({}, 0))) status.publish();
}

void HostWorkers::call_off_starts() {
  for (const std::shared_ptr<Start>& start : std::vector(starts_)) {
    {
      const std::lock_guard<std::mutex> lock(start->mutex);
      start->is_cancelled = true;
      if (start->has_begun) continue;  // Its processes are stopped like all others.
    }
    supervisor_.blocking.forget(start->task);
    std::erase(starts_, start);
    for (const std::uint32_t index : start->indexes) {
      workers_[index]->call_off();
      could_not_start(index);
    }
  }
}

bool HostWorkers::is_starting(pid_t pid) const {
  for (const std::shared_ptr<Start>& start : starts_) {
    const std::lock_guard<std::mutex> lock(start->mutex);
    if (start->is_forking) return true;
    for (const auto& launch : start->launches)
      if (launch->pid() == pid) return true;
  }
  return false;
}

void HostWorkers::start_again(std::uint32_t rank, std::uint32_t rejoins) {
  for (std::uint32_t index = 0; index < workers_.size(); ++index) {
    if (workers_[index]->rank() != rank) continue;
    WorkerSpec spec = plan_.workers(static_cast<int>(index));
    // The input that the previous process has read is not sent again, and half an input would
    // mislead the program.
    spec.set_standard_input(false);
    control_.worker_starts_again(rank, rejoins);
    replaced_.push_back(
        std::exchange(workers_[index], std::make_unique<Worker>(*context_, rank, rejoins)));
    auto start = std::make_shared<Start>();
    start->indexes = {index};
    start->launches.push_back(workers_[index]->prepare(group_, spec));
    return carry_out(std::move(start));
  }
}

void HostWorkers::forget() {
  call_off_starts();
  // Destroy them in a later turn: their cancelled handlers are still queued.
  boost::asio::post(supervisor_.loop,
                    [workers = std::exchange(workers_, {}), replaced = std::exchange(replaced_, {}),
                     output = std::exchange(output_, make_output())] {});
  exits_ = std::make_unique<ExitOrder>();
  // Restart the sampling of kills, so that earlier kills of other processes are not attributed to a
  // worker of the next generation.
  older_kills_.reset();
  newer_kills_.reset();
}

void HostWorkers::count_out_of_memory_kills() {
  if (older_kills_) return;
  older_kills_ = KillSample{static_cast<std::uint64_t>(monotonic_ns()),
                            supervisor_.containment->out_of_memory_kills()};
  newer_kills_ = older_kills_;
}

bool HostWorkers::has_unattributed_memory_kill() {
  return context_->containment.out_of_memory_kills() > older_kills_->kills;
}

void HostWorkers::collect(Worker& worker) {
  collect_in_order();
  collect_one(worker);
}

// These times determine which rank failed first. All are taken before any exit is examined, which
// is slow.
void HostWorkers::collect_in_order() {
  const std::vector<std::uint32_t> ended = exits_->take();
  for (const std::uint32_t index : ended) {
    last_end_ns_ = std::max<std::uint64_t>(last_end_ns_ + 1, monotonic_ns());
    workers_[index]->stamp_end(last_end_ns_);
  }
  for (const std::uint32_t index : ended) collect_one(*workers_[index]);
}

void HostWorkers::collect_one(Worker& worker) {
  if (!is_alive(worker.state())) return;
  ExitCircumstances circumstances;
  circumstances.stopping = ending_.stopping();
  circumstances.killed_by_supervisor = ending_.has_killed();
  circumstances.fails_alone = !circumstances.stopping && plan_.on_failure() != FAILURE_ENDS_ALL;
  if (worker.has_ended()) control_.read_last_packets_of(worker.rank());
  circumstances.operations = control_.status().finished_operations(worker.rank());
  if (!worker.collect(circumstances)) return;
  if (worker.ended_out_of_memory()) {
    ++older_kills_->kills;
    newer_kills_->kills = std::max(newer_kills_->kills, older_kills_->kills);
  }
  control_.worker_reaped(worker.rank(), worker.pid(), worker.exit_status(),
                         worker.ended_out_of_memory());
  owner_.worker_exited(worker);
}

void HostWorkers::collect_all() {
  for (const std::unique_ptr<Worker>& worker : workers_) collect(*worker);
}

Worker* HostWorkers::find(pid_t pid) const {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->pid() == pid && is_alive(worker->state())) return worker.get();
  return nullptr;
}

bool HostWorkers::have_ended() const {
  return starts_.empty() && std::none_of(workers_.begin(), workers_.end(), [](const auto& worker) {
           return is_alive(worker->state());
         });
}

bool HostWorkers::have_succeeded() const {
  return have_ended() &&
         std::all_of(workers_.begin(), workers_.end(), [](const std::unique_ptr<Worker>& worker) {
           return worker->pid() > 0 && worker->exit_status().is_success();
         });
}

bool HostWorkers::are_over() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return is_over(worker->state()); });
}

bool HostWorkers::is_finished(std::uint32_t rank) const {
  return std::all_of(workers_.begin(), workers_.end(), [rank](const auto& worker) {
    return worker->rank() != rank || is_over(worker->state());
  });
}

std::vector<std::string> HostWorkers::own_devices(std::uint32_t rank) const {
  std::map<std::string, std::vector<std::uint32_t>> ranks_of;
  for (const WorkerSpec& spec : plan_.workers()) {
    for (const Variable& variable : spec.environment()) {
      if (variable.name() != "IVY_DEVICE_UUID") continue;
      for (std::string_view rest = variable.value(); !rest.empty();)
        ranks_of[std::string(take_part(rest, ','))].push_back(spec.rank());
    }
  }
  std::vector<std::string> own;
  for (const auto& [uuid, ranks] : ranks_of)
    if (ranks == std::vector{rank}) own.push_back(uuid);
  return own;
}

void HostWorkers::send_signal(const SignalWorkers& order) {
  if (order.signal() <= 0 || order.signal() >= NSIG) return;
  const auto& ranks = order.ranks();
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (ranks.empty() || std::find(ranks.begin(), ranks.end(), worker->rank()) != ranks.end())
      worker->send_signal(order.signal());
}

void HostWorkers::kill(std::uint32_t rank) {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->rank() == rank) worker->send_signal(SIGKILL);
}

void HostWorkers::tick(std::uint64_t now_ns, std::uint64_t elapsed_ns) {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->tick(now_ns);
  // The count begins before the first workers have a context.
  if (context_ && newer_kills_ && now_ns - newer_kills_->at_ns >= kKillSampleNs) {
    older_kills_ = newer_kills_;
    newer_kills_ = KillSample{now_ns, context_->containment.out_of_memory_kills()};
  }
  output_->tick(elapsed_ns, ending_.stopping() ? kLogTimeoutAfterStopNs : kLogTimeoutNs);
}

pid_t HostWorkers::process_of(std::uint32_t rank) const {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->rank() == rank) return worker->pid();
  return 0;
}

Operations HostWorkers::usage(const std::vector<HeldMemory>& held) const {
  Operations answer;
  answer.set_sampled_ns(static_cast<std::uint64_t>(monotonic_ns()));
  std::vector<RankProcess> ranks;
  for (const auto& worker : workers_)
    if (is_alive(worker->state())) ranks.emplace_back(worker->rank(), worker->pid());
  add_usage(ranks, read_all_processes(), held, answer);
  return answer;
}

}  // namespace ivy
