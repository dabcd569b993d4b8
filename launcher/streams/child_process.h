// SPDX-License-Identifier: Apache-2.0
// A child of the launcher that is not a worker, such as the warden of this host, an OpenSSH client,
// srun or squeue. start() does not copy our memory. The loop reaps the child.
//
// Thread: the loop's.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct ChildRequest {
  std::vector<std::string> arguments;  // arguments[0] is looked up in PATH if it has no '/'.
  int stdin_fd = -1;  // -1 means /dev/null. The caller keeps ownership of all four.
  int stdout_fd = -1;
  int stderr_fd = -1;
  int third_fd = -1;  // Becomes descriptor 3; -1 if there is none.
  // NAME=VALUE texts; by default those of tool_environment().
  std::optional<std::vector<std::string>> environment;
  bool is_connection = false;  // The child carries a connection: see terminate_connections().
};

// Returns the launcher's environment for a program of the system (ssh, srun, squeue): without
// LD_LIBRARY_PATH and LD_PRELOAD, which conda and vendor images set for the user's program. With a
// foreign libcrypto on that path, ssh would fail before it prints anything. The plan restores both
// variables for workers.
Environment tool_environment();
// Converts variables to NAME=VALUE texts for ChildRequest.
std::vector<std::string> environment_texts(const Environment& environment);

// Keeps itself alive until the child has exited (or the loop is destroyed), so that the owner may
// drop its reference at any time.
class ChildProcess : public std::enable_shared_from_this<ChildProcess> {
 public:
  // Starts the child in a separate session (so that the terminal's Ctrl-C does not reach it), with
  // default signals and no other descriptors. Returns NotFound, PermissionDenied, ResourceExhausted
  // or Internal on failure.
  static Result<std::shared_ptr<ChildProcess>> start(boost::asio::io_context& loop,
                                                     const ChildRequest& request);
  // Adopts a running child that this process has forked. If that fails, kills it and returns
  // Internal.
  static Result<std::shared_ptr<ChildProcess>> adopt(boost::asio::io_context& loop, pid_t pid,
                                                     const std::string& name);
  // Returns true if any child, started or adopted, has not been reaped yet.
  static bool any_runs();
  // Ends the running children that carry connections (ssh, kubectl). Returns false if there are
  // none. Call these before the process exits, each after a pause in which they could exit by
  // themselves: end_within() needs the loop, and a child that is stuck, waits for a password or
  // ignores SIGTERM would outlive this process.
  static bool terminate_connections();
  static bool kill_connections();
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Returns the exit status; empty while the child is running.
  const std::optional<ExitStatus>& ended();
  // Sets a function that is called once, from the loop, when the child has exited. An empty
  // function cancels that.
  void on_end(std::function<void(const ExitStatus&)> callback) { on_end_ = std::move(callback); }
  // Sends a signal while the child is running; never to another process that reused its pid.
  void signal(int number);
  // Kills the child and its process group, which start() has created: a shell that ignores SIGTERM
  // runs its commands in it.
  void kill_group();
  // Call this when the child should exit by itself (its input was closed). It gets SIGTERM if it
  // has not exited after kEndTimeout, and is killed with its group after as long again. Cancels
  // on_end().
  void end_within(boost::asio::io_context& loop);

  static constexpr std::chrono::seconds kEndTimeout{2};

 private:
  ChildProcess(boost::asio::io_context& loop, pid_t pid, int pidfd);
  void watch();
  // Reaps the exited child and reports it, at once or as soon as the kernel allows it.
  void collect();
  void reap();

  const pid_t pid_;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer reap_timer_;
  std::optional<ExitStatus> status_;
  std::function<void(const ExitStatus&)> on_end_;
};

// A child whose standard streams are pipes. Our ends are non-blocking.
struct PipedChild {
  std::shared_ptr<ChildProcess> process;
  Descriptor input;
  Descriptor output;
  Descriptor errors;
};
// Starts the child. Sets the request's descriptors; returns the same errors as
// ChildProcess::start().
Result<PipedChild> start_piped(boost::asio::io_context& loop, ChildRequest request);

}  // namespace ivy
