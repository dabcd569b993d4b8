// SPDX-License-Identifier: Apache-2.0
// The workers of this host: starts those of a generation, copies their output, and takes their
// exits in the order in which they ended. Starts are carried out on the pool, because the file
// systems of the working directory and of the program may not answer. Thread: the loop's. Lifetime:
// outlived by what its constructor gets.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/hang/stack_collector.h"
#include "agent/node/spawn/containment.h"
#include "agent/node/spawn/processor_share.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/supervisor_start.h"
#include "agent/node/workers/ending.h"
#include "agent/node/workers/exit_order.h"
#include "agent/node/workers/input_pipe.h"
#include "agent/node/workers/output_pump.h"
#include "agent/node/workers/worker.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class HostWorkers {
 public:
  struct Handlers {
    std::function<void(const Event&)> send;
    std::function<void()> changed;  // A worker's process has ended, or its output has.
    std::function<MpiEnd(std::uint32_t rank, const ExitStatus&)> judge_mpi;
    std::function<void(const Worker&)> ended;  // Its process; the launcher has been told.
  };

  // Files of this build next to the programs (facts/own_package.h), which may be in a home
  // directory.
  struct OwnFiles {
    std::string package;
    std::string hook;
    std::string nccl_profiler;
    bool has_pmix = false;  // ivy-pmix.
  };
  // Reads the file system, and the running program whole, so that no later step waits for a page of
  // it: for a pool thread.
  static OwnFiles find_own_files(const std::string& program_directory);

  // The parts of the supervisor that workers deal with.
  struct Parts {
    BlockingPool& blocking;
    CommandChannel& channel;
    ControlServer& control;
    const Ending& ending;
  };

  HostWorkers(boost::asio::io_context& loop, const SupervisorStart& start, const Parts& parts,
              Handlers handlers);

  void take_own_files(OwnFiles files) { own_files_ = std::move(files); }
  // Starts the plan's workers. The workers of the last generation must have been forgotten.
  void start(const HostPlan& plan, const Containment& containment);
  // Starts one rank again, alone. Its last process and output are over.
  void start_again(std::uint32_t rank, std::uint32_t rejoins);
  // A stop begins: starts that have created no process yet fail with ECANCELED. The others are
  // concluded, and their processes stopped like all others.
  void call_off_starts();
  // True for a process whose start has not been concluded, so that it must not be reaped yet.
  bool is_starting(pid_t pid) const;
  // Nothing of them is left. The plan and the generation stay.
  void forget();
  // Out-of-memory kills until now are not blamed on a worker; counts only once per generation.
  void count_out_of_memory_kills(const Containment& containment);

  // Handles the exits of processes that have ended.
  void collect_in_order();
  void collect_all();
  // The worker whose own process this is, if it has not been collected; else null.
  Worker* find(pid_t pid) const;
  void collect(Worker& worker);

  const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }
  bool have_ended() const;  // No worker's own process lives or is being started.
  bool are_over() const;    // Their output has ended, too.
  bool is_finished(std::uint32_t rank) const;
  // The accelerators of this rank that no other rank of the host has, by UUID.
  std::vector<std::string> own_devices(std::uint32_t rank) const;
  void send_signal(int signal);  // To each rank's own process, once.
  void tick(std::uint64_t now_ns, std::uint64_t elapsed_ns);
  void kill(std::uint32_t rank);
  // Returns the rank's own process; 0: no such rank on this host.
  pid_t process_of(std::uint32_t rank) const;

  // Returns the resource usage of the ranks' processes.
  Operations usage(const std::vector<HeldMemory>& held) const;

  std::uint32_t generation() const { return plan_.generation(); }
  const HostPlan& plan() const { return plan_; }  // The plan that was started last.
  // Returns the group for the stack collector.
  StackCollector::Group group() const {
    return {start_.directory, generation(), group_.environment->variables};
  }
  OutputPump& output() { return *output_; }
  InputPipe& input() { return input_; }

 private:
  // A start of workers, shared with the pool thread that carries it out.
  struct Start;

  std::unique_ptr<OutputPump> make_output();
  void warn_of_log(const std::string& text);
  WorkerGroup group_of(const ProcessorShare& share) const;
  void begin_all();
  void carry_out(std::shared_ptr<Start> start);
  void conclude(const std::shared_ptr<Start>& start);
  void watch(std::uint32_t index, WorkerLaunch& launch);
  void could_not_start(std::uint32_t index);
  void collect_one(Worker& worker);

  boost::asio::io_context& loop_;
  const SupervisorStart& start_;
  const Parts parts_;
  const Handlers handlers_;
  std::unique_ptr<OutputPump> output_;
  InputPipe input_;
  HostPlan plan_;
  WorkerGroup group_;
  std::optional<WorkerContext> context_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::shared_ptr<Start>> starts_;  // In progress on the pool.
  OwnFiles own_files_;
  std::vector<std::unique_ptr<Worker>> replaced_;  // Their handlers may still be queued.
  std::unique_ptr<ExitOrder> exits_ = std::make_unique<ExitOrder>();
  std::uint64_t last_end_ns_ = 0;
  // Samples of the counter of out-of-memory kills, a second apart: a kill explains only an exit
  // soon after it, not one a day later. Kills that were attributed to a worker are counted as seen.
  struct KillSample {
    std::uint64_t at_ns = 0;
    long kills = 0;
  };
  std::optional<KillSample> older_kills_, newer_kills_;
  bool log_warned_ = false;
};

}  // namespace ivy
