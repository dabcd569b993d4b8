// SPDX-License-Identifier: Apache-2.0
// One worker: starts its process, notices its exit, and reports both to the launcher. Its output
// goes through OutputPump. Thread: the loop's. Lifetime: everything that WorkerContext refers to
// must outlive it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/spawn.h"
#include "agent/node/workers/input_pipe.h"
#include "agent/node/workers/mpi_ranks.h"
#include "agent/node/workers/output_pump.h"
#include "agent/node/workers/worker_state.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns the part of the supervisor's environment that a worker inherits. Leaves out the ranks of
// an outer job, variables that ivyrun sets (one that this plan does not set, such as
// JAX_LOCAL_DEVICE_IDS, must not be inherited), and the names in `unset`. env_rule() knows the
// first two.
Environment inherited_environment(char* const* environment_block,
                                  const std::vector<std::string>& unset);

class Worker;

// Implemented by HostWorkers (../supervisor).
class WorkerEvents {
 public:
  // Sends an event to the launcher.
  virtual void send(const Event& event) = 0;
  // The worker's process has exited: the owner now calls collect().
  virtual void on_exit(Worker& worker) = 0;
  // A worker was collected, or its output ended.
  virtual void on_change() = 0;
  // Returns true if the kernel killed a process for lack of memory and the kill is not attributed
  // yet. Called only if necessary, because it reads several files.
  virtual bool has_unattributed_memory_kill() = 0;
  // Returns more facts about the exit of an MPI process.
  virtual MpiEnd classify_mpi_end(std::uint32_t rank, const ExitStatus& status) = 0;

 protected:
  ~WorkerEvents() = default;
};

// Shared by all workers of a host.
struct WorkerContext {
  boost::asio::io_context& loop;
  const Containment& containment;
  const JobDirectory& directory;
  std::string job_id;
  std::uint32_t host = 0;
  OutputPump& output;
  InputPipe& input;
  std::string control_socket;  // Empty if the job has none.
  WorkerEvents& owner;
};

// Shared by all workers of one Start.
struct WorkerGroup {
  std::uint32_t generation = 0;
  std::vector<std::string> arguments;
  std::string working_directory;
  // The supervisor's variables without `unset`, overridden by the plan's.
  std::shared_ptr<const SharedEnvironment> environment = std::make_shared<SharedEnvironment>();
  std::string log_directory;  // Empty if no files are written.
  bool python_hook = false;   // sitecustomize is on PYTHONPATH.
  bool own_sessions = false;  // Each worker has a separate session.
  std::optional<SpawnLimits> limits;
  // Command to which the program is appended and which executes it; empty if none
  // (roles/mpi_exec.h).
  std::vector<std::string> mpi_exec;
  std::string node_program;  // ivy-node, which also runs before an app's program.
  // Command that enters the job's container and executes the program there; empty without one.
  std::vector<std::string> container_enter;
};

// State of the ending, which decides the meaning of an exit.
struct ExitCircumstances {
  bool stopping = false;              // It exited after the stop had started.
  bool killed_by_supervisor = false;  // The supervisor may have sent a SIGKILL.
  // The job continues without this worker: if it failed, the processes in its process group are
  // killed with it.
  bool fails_alone = false;
  std::uint64_t operations = 0;  // Operations of the comm runtime that it had finished.
};

// StartFailed.step of a worker that was not created because a stop came first. The launcher counts
// it as stopped (launcher/job/core/job_workers.cc).
inline constexpr const char* kStopStep = "stop";

// The start of one worker's process. Prepared on the loop, carried out on a pool thread, because
// the file systems of its working directory and program may not respond, and completed by the
// worker on the loop.
class WorkerLaunch {
 public:
  WorkerLaunch() = default;
  WorkerLaunch(const WorkerLaunch&) = delete;
  WorkerLaunch& operator=(const WorkerLaunch&) = delete;

  // Called in this order on the pool thread.
  void find_program(const BlockingPool::Label& label);
  void begin();  // Creates the process, unless it was forked; does not block.
  void await(const BlockingPool::Label& label);

  // Instead of begin(), if a fork server creates the process. Opens the pipes; returns null if the
  // start has failed.
  const SpawnRequest* request_fork();
  void take_forked(SpawnResult result);

  // Makes the start fail; call only before begin().
  void fail(const char* step, int error) { pending_.failure = {step, "", error}; }
  // -1 before begin() and after a failure.
  pid_t pid() const { return pending_.process.pid; }

 private:
  friend class Worker;
  bool open_pipes();
  struct Pipes {
    Descriptor stdin_reader, stdin_writer;
    Descriptor stdout_reader, stdout_writer;
    Descriptor stderr_reader, stderr_writer;
    int make(bool with_input);
    void close_workers_ends();
  };

  Pipes pipes_;
  bool has_input_ = false;
  SpawnRequest request_;
  std::string program_;            // As given by the user.
  std::vector<std::string> wrap_;  // --wrap: a tool that executes the program.
  // Programs that execute one another and finally the user's, innermost first (roles/mpi_exec.h).
  std::vector<std::vector<std::string>> in_front_;
  bool is_in_container_ = false;  // The outermost of them looks the program up in the container.
  PendingSpawn pending_;
};

class Worker {
 public:
  // How long to read a pipe that stays open after its worker's exit.
  static constexpr std::uint64_t kDrainNs = 2'000'000'000;
  static constexpr std::size_t kMaxErrorFileBytes = 64u << 10;

  // rejoins: how often this rank alone was started again.
  Worker(WorkerContext& context, std::uint32_t rank, std::uint32_t rejoins = 0);
  ~Worker();

  // Prepares the start. The owner carries it out and then calls finish_start().
  std::unique_ptr<WorkerLaunch> prepare(const WorkerGroup& group, const WorkerSpec& spec);
  // Takes over the process, sends Started or StartFailed, and waits for the exit.
  void finish_start(const WorkerGroup& group, WorkerLaunch& launch);
  // Sends StartFailed for a start that a stop has cancelled.
  void call_off() { fail(kStopStep, "", ECANCELED); }
  // Returns true if its process has exited, whether or not it was collected.
  bool has_ended();
  // Sets the time of the exit if it is known more precisely than by collect().
  void stamp_end(std::uint64_t at_ns) { ended_at_ns_ = at_ns; }
  // For ExitOrder; -1 if there is no process to watch.
  int pidfd() { return pidfd_.is_open() ? pidfd_.native_handle() : -1; }
  // Reads the exit status of a process that has exited, and sends Exited. Returns false if it is
  // still running.
  bool collect(const ExitCircumstances& circumstances);
  // Sends a signal to the worker's own process; SIGSTOP and SIGCONT go to its whole process group.
  void send_signal(int signal);
  // Closes pipes that other processes hold open longer than kDrainNs after the worker's end.
  void tick(std::uint64_t now_ns);

  WorkerState state() const { return state_; }
  pid_t pid() const { return pid_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t rejoins() const { return rejoins_; }
  // Valid once the worker has been reaped.
  const ExitStatus& exit_status() const { return exit_status_; }
  // Returns true if the kernel's out-of-memory killer caused the exit.
  bool ended_out_of_memory() const { return ended_out_of_memory_; }

 private:
  Environment own_environment(const WorkerGroup& group, const WorkerSpec& spec) const;
  void fail(const std::string& step, const std::string& path, int error);
  void add_streams(const WorkerGroup& group, WorkerLaunch::Pipes& pipes);
  void add_stream(const WorkerGroup& group, int fd, std::uint8_t stream);
  void enter(WorkerEvent event);
  void output_ended();
  bool query_exit(siginfo_t& info, int flags);
  void report_exit(const siginfo_t& info, const ExitCircumstances& circumstances,
                   std::uint64_t input_taken);
  std::string read_error_file() const;

  WorkerContext& context_;
  std::uint32_t generation_ = 0;
  std::uint32_t rank_;
  std::uint32_t rejoins_;
  WorkerState state_ = WorkerState::kPlanned;
  pid_t pid_ = -1;
  boost::asio::posix::stream_descriptor pidfd_;
  std::vector<OutputPump::StreamId> streams_;
  int open_streams_ = 0;
  bool has_input_ = false;
  bool was_killed_by_supervisor_ = false;
  bool ended_out_of_memory_ = false;
  std::uint64_t ended_at_ns_ = 0;
  ExitStatus exit_status_;
};

}  // namespace ivy
