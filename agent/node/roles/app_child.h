// SPDX-License-Identifier: Apache-2.0
// A process that app-run has started: a server, the client, or a check. Not thread-safe. Lifetime:
// the owner must kill its process group.
#pragma once

#include <sys/types.h>

#include <string>

#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Returns the environment for processes that are not ranks: without the rank's identity, but with
// the job's, by which the containment finds them.
Environment service_environment(const google::protobuf::RepeatedPtrField<Variable>& own);

class AppChild {
 public:
  // `directory`: the job's directory, which receives the output unless it is shown.
  AppChild(AppServer server, std::string directory)
      : server_(std::move(server)), directory_(std::move(directory)) {}

  // Starts the process from `path`, or from PATH if empty. Returns false, after printing the
  // reason, if it cannot be started.
  bool start(const Environment& environment, const std::string& path = {});
  // Records the exit if the process has exited. The process remains a zombie until reap() is
  // called, so that its pid still belongs to its process group.
  void collect();
  // Checks whether a server accepts connections and, if it has a path for that, responds with 200.
  // Blocks for at most a few seconds. Once ready, it remains ready.
  bool check_ready();

  bool has_ended() const { return ended_; }
  bool has_succeeded() const { return ended_ && exit_code() == 0; }
  bool has_failed() const { return ended_ && !(server_.may_end() && exit_code() == 0); }
  int exit_code() const { return status_.shell_code(); }
  int signal() const { return status_.signal; }  // The signal that killed it; 0 if none.
  void send(int signal) const;
  void kill_group(int signal) const;
  // Reaps the process if it has exited. Returns true while any process of its group exists; once
  // the group is empty, kill_group() does nothing.
  bool reap();

  // Prints how the process exited, with the last lines of its output.
  void print_exit(const std::string& app) const;
  void show_last_lines() const;
  // Returns the last line of its output; empty if it has printed nothing or its output is shown.
  std::string last_line() const;

 private:
  std::string log_path() const { return directory_ + "/app-" + server_.role() + ".log"; }
  bool answers_path(int fd) const;

  AppServer server_;
  std::string directory_;
  pid_t pid_ = 0;
  ExitStatus status_;
  bool ended_ = false;
  bool has_group_exited_ = false;
  bool was_ready_ = false;
};

}  // namespace ivy
