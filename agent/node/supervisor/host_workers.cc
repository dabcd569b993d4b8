#include "agent/node/supervisor/host_workers.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <map>
#include <string_view>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "agent/node/hang/rank_usage.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/workers/python_hook.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

// How long workers that have ended wait for a file system that takes nothing of their log files.
// While workers run there is no limit.
constexpr std::uint64_t kLogPatienceNs = 60 * kNanosPerSecond;
constexpr std::uint64_t kLogPatienceAfterStopNs = 5 * kNanosPerSecond;

std::vector<std::string> mpi_exec_words(const MpiPlan& mpi, const std::string& program_directory,
                                        const std::string& job_directory) {
  std::vector<std::string> words = {program_directory + "/ivy-node", "mpi-exec", "--directory",
                                    job_directory};
  if (mpi.pmi()) words.push_back("--pmi");
  if (mpi.pmix()) words.push_back("--pmix");
  return words;
}

// A worker that misses one of them says so itself.
void write_plan_files(const HostPlan& plan, const JobDirectory& directory) {
  for (const NamedText& file : plan.files())
    (void)write_whole(directory.path + "/" + file.name(), file.text());
}

}  // namespace

HostWorkers::HostWorkers(boost::asio::io_context& loop, const SupervisorStart& start,
                         const Parts& parts, Handlers handlers)
    : loop_(loop),
      start_(start),
      parts_(parts),
      handlers_(std::move(handlers)),
      output_(make_output()),
      input_(loop, parts.channel.session(), [this] { parts_.channel.flush(); }) {}

std::unique_ptr<OutputPump> HostWorkers::make_output() {
  return std::make_unique<OutputPump>(
      loop_, parts_.channel.session(),
      OutputPump::Handlers{[this] { parts_.channel.flush(); },
                           [this](const std::string& text) { warn_of_log(text); }});
}

void HostWorkers::warn_of_log(const std::string& text) {
  if (std::exchange(log_warned_, true)) return;
  Event event;
  event.mutable_note()->set_warning(true);
  event.mutable_note()->set_text(text + "; this host's log files are incomplete from here on");
  handlers_.send(event);
}

WorkerGroup HostWorkers::group_of(const ProcessorShare& share) const {
  WorkerGroup group;
  group.generation = plan_.generation();
  group.arguments.assign(plan_.arguments().begin(), plan_.arguments().end());
  group.working_directory = plan_.working_directory();
  group.log_directory = plan_.log_directory();
  group.environment = inherited_environment(environ, {plan_.unset().begin(), plan_.unset().end()});
  for (const Variable& variable : plan_.environment())
    set_variable(group.environment, variable.name(), variable.value());
  const std::string program = program_directory();
  append_package(group.environment, own_package(program));
  add_evidence_variables(group.environment, start_.directory, plan_.generation());
  add_nccl_profiler(group.environment, own_nccl_profiler(program));
  if (plan_.mpi().pmi() || plan_.mpi().pmix())
    group.mpi_exec = mpi_exec_words(plan_.mpi(), program, start_.directory.path);
  group.node_program = program + "/ivy-node";
  group.own_sessions = share.own_sessions;
  group.python_hook = plan_.python_hook() &&
                      add_python_hook(group.environment, own_hook(program), start_.directory);
  if (group.python_hook) write_rank_hosts(plan_, start_.directory);
  return group;
}

void HostWorkers::start(const HostPlan& plan, const Containment& containment) {
  plan_ = plan;
  parts_.control.begin(layout_of(plan_));
  count_out_of_memory_kills(containment);
  context_.emplace(WorkerContext{loop_, containment, start_.directory, start_.job_id, start_.host,
                                 *output_, input_, parts_.control.path(), handlers_.send,
                                 handlers_.changed});
  write_plan_files(plan_, start_.directory);
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
  for (const WorkerSpec& spec : plan_.workers()) {
    workers_.push_back(std::make_unique<Worker>(*context_, spec.rank()));
    workers_.back()->begin(group_, spec);
  }
  for (std::uint32_t index = 0; index < workers_.size(); ++index) watch(index);
}

// Waits until it is executed, and then for its end.
void HostWorkers::watch(std::uint32_t index) {
  Worker& started = *workers_[index];
  started.finish_start(group_, [this](Worker& worker) { collect(worker); });
  if (is_alive(started.state())) return exits_->watch(started.pidfd(), index);
  JobStatus& status = parts_.control.status();
  if (status.set(started.rank(), ended_status({}, 0))) status.publish();
}

void HostWorkers::start_again(std::uint32_t rank, std::uint32_t rejoins) {
  for (std::uint32_t index = 0; index < workers_.size(); ++index) {
    if (workers_[index]->rank() != rank) continue;
    WorkerSpec spec = plan_.workers(static_cast<int>(index));
    // The input that the last process has read does not come again: half an input misleads.
    spec.set_standard_input(false);
    parts_.control.worker_starts_again(rank, rejoins);
    replaced_.push_back(
        std::exchange(workers_[index], std::make_unique<Worker>(*context_, rank, rejoins)));
    workers_[index]->begin(group_, spec);
    return watch(index);
  }
}

void HostWorkers::forget() {
  // Destroy them in a later turn: their cancelled handlers are still queued.
  boost::asio::post(loop_,
                    [workers = std::exchange(workers_, {}), replaced = std::exchange(replaced_, {}),
                     output = std::exchange(output_, make_output())] {});
  exits_ = std::make_unique<ExitOrder>();
  // Start the count of kills afresh, so that earlier kills of non-workers are not blamed on a
  // worker of the next generation.
  out_of_memory_seen_.reset();
}

void HostWorkers::count_out_of_memory_kills(const Containment& containment) {
  if (!out_of_memory_seen_) out_of_memory_seen_ = containment.out_of_memory_kills();
}

void HostWorkers::collect(Worker& worker) {
  collect_in_order();
  collect_one(worker);
}

// The first rank to fail is found by these times: all are taken before any exit is examined, which
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
  circumstances.stopping = parts_.ending.stopping();
  circumstances.killed_by_us = parts_.ending.has_killed();
  circumstances.ends_alone = !circumstances.stopping && plan_.on_failure() != FAILURE_ENDS_ALL;
  circumstances.out_of_memory_rose = [this] {
    return context_->containment.out_of_memory_kills() > *out_of_memory_seen_;
  };
  // What a rank does after the stop has begun is not held against it.
  if (!circumstances.stopping && handlers_.judge_mpi)
    circumstances.judge_mpi = [this, rank = worker.rank()](const ExitStatus& status) {
      return handlers_.judge_mpi(rank, status);
    };
  if (worker.has_ended()) parts_.control.worker_ends(worker.rank());
  if (!worker.collect(circumstances)) return;
  if (worker.ended_out_of_memory()) ++*out_of_memory_seen_;
  parts_.control.worker_ended(worker.rank(), worker.pid(), worker.exit_status(),
                              worker.ended_out_of_memory());
  if (handlers_.ended) handlers_.ended(worker);
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
  return std::none_of(workers_.begin(), workers_.end(),
                      [](const auto& worker) { return is_alive(worker->state()); });
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

void HostWorkers::send_signal(int signal) {
  if (signal <= 0 || signal >= NSIG) return;
  for (const std::unique_ptr<Worker>& worker : workers_) worker->send_signal(signal);
}

void HostWorkers::kill(std::uint32_t rank) {
  for (const std::unique_ptr<Worker>& worker : workers_)
    if (worker->rank() == rank) worker->send_signal(SIGKILL);
}

void HostWorkers::tick(std::uint64_t now_ns, std::uint64_t elapsed_ns) {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->tick(now_ns);
  output_->tick(elapsed_ns, parts_.ending.stopping() ? kLogPatienceAfterStopNs : kLogPatienceNs);
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
