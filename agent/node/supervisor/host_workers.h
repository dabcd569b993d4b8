// SPDX-License-Identifier: Apache-2.0
// The workers of this host: starts the workers of a generation, passes their output on, and
// collects their exits in the order in which the processes exited. The pool carries out the starts,
// because the file systems of the working directory and of the program may not respond. Thread: the
// loop's. Lifetime: the arguments of the constructor must outlive it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/devices/watch_answer.h"
#include "agent/node/hang/stack_collector.h"
#include "agent/node/spawn/containment.h"
#include "agent/node/spawn/processor_share.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/host_container.h"
#include "agent/node/supervisor/preload_server.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "agent/node/workers/ending.h"
#include "agent/node/workers/exit_order.h"
#include "agent/node/workers/input_pipe.h"
#include "agent/node/workers/output_pump.h"
#include "agent/node/workers/worker.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Implemented by Generation.
class HostWorkersEvents {
 public:
  // A worker's process has exited, or its output has ended.
  virtual void workers_changed() = 0;
  // Returns how the exit of this rank counts in its MPI world.
  virtual MpiEnd classify_mpi_exit(std::uint32_t rank, const ExitStatus& status) = 0;
  // Returns true if workers may start once more after these.
  virtual bool may_start_again() const = 0;
  // A worker's process has exited, and Exited was sent.
  virtual void worker_exited(const Worker& worker) = 0;

 protected:
  ~HostWorkersEvents() = default;
};

class HostWorkers final : private WorkerEvents, private OutputPumpEvents, private InputPipeEvents {
 public:
  // Files of this build next to the programs (facts/own_package.h), which may be in a home
  // directory.
  struct OwnFiles {
    std::string package;
    std::string hook;
    std::string nccl_profiler;
    bool has_pmix = false;  // ivy-pmix.
  };
  // Reads the file system, and the whole running program, so that no later step waits for one of
  // its pages. Call it on a pool thread.
  static OwnFiles find_own_files(const std::string& program_directory);

  HostWorkers(SupervisorContext& context, CommandChannel& channel, ControlServer& control,
              const HostContainer& container, const Ending& ending, HostWorkersEvents& owner);

  void take_own_files(OwnFiles files) { own_files_ = std::move(files); }
  // Starts the plan's workers. The workers of the last generation must have been forgotten.
  void start(const HostPlan& plan);
  // Restarts only this rank. Its last process has exited and its output has ended.
  void start_again(std::uint32_t rank, std::uint32_t rejoins);
  // Call when a stop begins: starts that have created no process yet fail with ECANCELED. The other
  // starts are concluded, and their processes stopped like all others.
  void call_off_starts();
  // Returns true for a process whose start has not been concluded, which must not be reaped yet.
  bool is_starting(pid_t pid) const;
  // The fork server of --preload: the supervisor has reaped a child; a new containment must exclude
  // it; nothing starts any more.
  void preload_reaped(pid_t pid);
  void spare_preload();
  void end_preload();
  // Drops the workers of the last generation, which must have no process left. Keeps the plan.
  void forget();
  // Excludes earlier out-of-memory kills from those attributed to workers. Only the first call of a
  // generation counts.
  void count_out_of_memory_kills();

  // Handles exits in the order in which the processes exited.
  void collect_in_order();
  void collect_all();
  // Returns the uncollected worker with this process, or null.
  Worker* find(pid_t pid) const;
  void collect(Worker& worker);

  const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }
  bool have_ended() const;      // No worker's own process is running or being started.
  bool have_succeeded() const;  // All of them have been started, and have exited with 0.
  bool are_over() const;        // Their output has ended, too.
  bool is_finished(std::uint32_t rank) const;
  // Returns the UUIDs of accelerators that belong only to this rank of the host.
  std::vector<std::string> own_devices(std::uint32_t rank) const;
  void send_signal(const SignalWorkers& order);
  void tick(std::uint64_t now_ns, std::uint64_t elapsed_ns);
  void kill(std::uint32_t rank);
  // Returns the rank's own process; 0 if the rank is not on this host.
  pid_t process_of(std::uint32_t rank) const;

  // Returns the resource usage of the ranks' processes.
  Operations usage(const std::vector<HeldMemory>& held) const;

  std::uint32_t generation() const { return plan_.generation(); }
  const HostPlan& plan() const { return plan_; }  // The plan that was started most recently.
  // Returns the group for the stack collector.
  StackCollector::Group group() const {
    return {supervisor_.start.directory, generation(), group_.environment->variables};
  }
  OutputPump& output() { return *output_; }
  InputPipe& input() { return input_; }

 private:
  // A start of workers, shared with the pool thread that carries it out.
  struct Start;

  // WorkerEvents
  void send(const Event& event) override { supervisor_.events.send(event); }
  void on_exit(Worker& worker) override { collect(worker); }
  void on_change() override { owner_.workers_changed(); }
  bool has_unattributed_memory_kill() override;
  MpiEnd classify_mpi_end(std::uint32_t rank, const ExitStatus& status) override {
    return owner_.classify_mpi_exit(rank, status);
  }
  // OutputPumpEvents
  void output_queued() override { channel_.flush(); }
  void log_failed(const std::string& text) override;
  // InputPipeEvents
  void input_granted() override { channel_.flush(); }

  std::unique_ptr<OutputPump> make_output();
  WorkerGroup group_of(const ProcessorShare& share) const;
  void begin_all();
  void choose_preload();
  void preload_failed(const std::string& why);
  // Starts the processes on a pool thread, then calls conclude() on the loop.
  void carry_out(std::shared_ptr<Start> start);
  void conclude(const std::shared_ptr<Start>& start);
  void watch(std::uint32_t index, WorkerLaunch& launch);
  void could_not_start(std::uint32_t index);
  void collect_one(Worker& worker);

  SupervisorContext& supervisor_;
  CommandChannel& channel_;
  ControlServer& control_;
  const HostContainer& container_;  // The workers enter it, if it is used.
  const Ending& ending_;
  HostWorkersEvents& owner_;
  std::unique_ptr<OutputPump> output_;
  InputPipe input_;
  HostPlan plan_;
  WorkerGroup group_;
  std::optional<WorkerContext> context_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<PreloadServer> preload_;      // Null without --preload, and if it has failed.
  std::vector<std::shared_ptr<Start>> starts_;  // In progress on the pool.
  OwnFiles own_files_;
  std::vector<std::unique_ptr<Worker>> replaced_;  // Their handlers may still be queued.
  std::unique_ptr<ExitOrder> exits_ = std::make_unique<ExitOrder>();
  std::uint64_t last_end_ns_ = 0;
  // Samples of the counter of out-of-memory kills, a second apart: a kill explains only an exit
  // soon after it. Kills that were attributed to a worker are counted as seen.
  struct KillSample {
    std::uint64_t at_ns = 0;
    long kills = 0;
  };
  std::optional<KillSample> older_kills_, newer_kills_;
  bool log_warned_ = false;
  bool has_preload_failed_ = false;  // And was reported; it is not tried again.
};

}  // namespace ivy
