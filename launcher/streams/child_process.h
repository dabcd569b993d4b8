// SPDX-License-Identifier: Apache-2.0
// A child of the launcher that is not a worker: the warden of this host, or an OpenSSH client. It
// is started without copying our memory and reaped by the loop, so it never stays behind as a
// zombie.
//
// Thread: the loop's.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
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
  std::vector<std::string> arguments;  // arguments[0] is looked up in PATH when it has no '/'.
  int stdin_fd = -1;                   // -1: /dev/null. The caller keeps ownership of all four.
  int stdout_fd = -1;
  int stderr_fd = -1;
  int third_fd = -1;  // Becomes descriptor 3; -1: there is none.
  // NAME=VALUE texts; by default those of tool_environment().
  std::optional<std::vector<std::string>> environment;
};

// The launcher's environment for a program of the system (ssh, srun, squeue): without
// LD_LIBRARY_PATH and LD_PRELOAD, which conda and vendor images set for the user's own program. A
// foreign libcrypto on that path stops ssh before it prints a word. Workers get both variables by
// the plan.
Environment tool_environment();
// NAME=VALUE texts, as ChildRequest takes them.
std::vector<std::string> environment_texts(const Environment& environment);

// Stays alive by itself until the child has ended (or the loop is destroyed); a holder may let go
// of it at any time.
class ChildProcess : public std::enable_shared_from_this<ChildProcess> {
 public:
  // Own session (a Ctrl-C of the terminal is not for it), default signal state, no other
  // descriptors. NotFound, PermissionDenied, ResourceExhausted or Internal.
  static Result<std::shared_ptr<ChildProcess>> start(boost::asio::io_context& loop,
                                                     const ChildRequest& request);
  // A child of ours that lives already: a fork of this process. Internal, and it is ended.
  static Result<std::shared_ptr<ChildProcess>> adopt(boost::asio::io_context& loop, pid_t pid,
                                                     const std::string& name);
  // True if any that was started has not been seen to end.
  static bool any_runs();
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // How it ended; nothing while it runs.
  const std::optional<ExitStatus>& ended();
  // Called once from the loop when it has ended; an empty function stops that.
  void on_end(std::function<void(const ExitStatus&)> callback) { on_end_ = std::move(callback); }
  // Sends a signal while it runs; never to a process that took over its number.
  void signal(int number);
  // It should end by itself now (its input was closed); it gets SIGTERM when it has not in this
  // time.
  void end_within(boost::asio::io_context& loop);

  static constexpr std::chrono::seconds kEndPatience{2};

 private:
  ChildProcess(boost::asio::io_context& loop, pid_t pid, int pidfd);
  void watch();
  void reap();

  const pid_t pid_;
  boost::asio::posix::stream_descriptor pidfd_;
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
// The same errors as ChildProcess::start(). The request's descriptors are set here.
Result<PipedChild> start_piped(boost::asio::io_context& loop, ChildRequest request);

}  // namespace ivy
