// SPDX-License-Identifier: Apache-2.0
// The fork server of --preload: a process with the workers' interpreter that has imported Python
// modules, and from which the workers of each attempt are forked (preload_server.py,
// ../spawn/fork_request.h). Like the job's store it is a child outside the workers' containment. If
// anything fails, workers start in the usual way, by exec.
//
// Thread: the constructor, end(), reaped() and pid() are for the loop; prepare() and fork() for one
// pool thread at a time, under lock(). Lifetime: shared, because a pool thread may outlive the
// supervisor's parts.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/spawn/fork_request.h"
#include "agent/node/spawn/spawn.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Everything that the server's process depends on. Workers that need another command need another
// server.
struct PreloadCommand {
  std::vector<std::string> arguments;  // The workers'.
  std::vector<std::string> options;    // Their beginning: the interpreter with its options.
  std::vector<std::string> modules;
  std::string folder;  // Below the job's directory; receives the server's files.
  std::string working_directory;
  Environment environment;
  std::optional<SpawnLimits> limits;
};

// Returns the command of the server for this plan. `shared` are the variables that all workers of
// the host have. Returns an error, which completes "the workers ...", if they cannot be forked from
// one process. Pure.
Result<PreloadCommand> preload_command(const HostPlan& plan, const Environment& shared,
                                       const std::string& job_directory);
// Returns true if a server that was started with `before` can fork the workers of `now`. Pure.
bool serves(const PreloadCommand& before, const PreloadCommand& now);

class PreloadServer {
 public:
  PreloadServer(PreloadCommand command, Environment identity)
      : command_(std::move(command)), identity_(std::move(identity)) {}
  PreloadServer(const PreloadServer&) = delete;
  PreloadServer& operator=(const PreloadServer&) = delete;

  const PreloadCommand& command() const { return command_; }
  // Returns the modules, for messages: "torch, transformers".
  std::string modules() const;

  // Held for the time of prepare() and fork().
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Starts the process and waits until it has imported the modules; returns immediately if it has.
  // executable: the interpreter. The error says why no worker can be forked, now or later;
  // Cancelled only means that is_cancelled() has returned true.
  Result<void> prepare(const std::string& executable, const std::function<bool()>& is_cancelled,
                       const BlockingPool::Label& label);
  // Forks the workers, at most kMaxForkedAtOnce in one request.
  Result<void> fork(std::vector<ForkedWorker>& workers, const std::function<bool()>& is_cancelled);

  // 0 before its start and after its exit.
  pid_t pid() const { return pid_; }
  // The supervisor has reaped a child.
  void reaped(pid_t pid);
  // Kills the process. No worker is forked afterwards.
  void end();

 private:
  Result<void> test_interpreter(const std::string& executable,
                                const std::function<bool()>& is_cancelled);
  Result<pid_t> run(const std::string& executable, const std::vector<std::string>& arguments,
                    const std::string& modules, Descriptor& socket);
  Result<std::string> read_message(int socket, const std::function<bool()>& is_cancelled) const;

  const PreloadCommand command_;
  const Environment identity_;  // Variables by which the containment recognizes the job.
  std::mutex mutex_;            // Guards the members up to is_ended_.
  Descriptor socket_;
  bool is_ready_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> is_ended_ = false;
  std::atomic<pid_t> pid_ = 0;
};

}  // namespace ivy
