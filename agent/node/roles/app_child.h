// SPDX-License-Identifier: Apache-2.0
// One process that app-run has started: a server, the client, or a check. Thread: one. Lifetime:
// its process group is the owner's to end.
#pragma once

#include <sys/types.h>

#include <string>

#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// The environment of what is not a rank: without the rank's identity, with the job's, by which the
// containment finds it.
Environment service_environment(const google::protobuf::RepeatedPtrField<Variable>& own);

class AppChild {
 public:
  // `directory`: of the job, where its output goes unless it is shown.
  AppChild(AppServer server, std::string directory)
      : server_(std::move(server)), directory_(std::move(directory)) {}

  // False: it could not be started, and that has been said. `path`: its file; empty: found by PATH.
  bool start(const Environment& environment, const std::string& path = {});
  // Takes its end, if it has ended. It stays a zombie, so that its number is its group's and no
  // other process's, until has_group() is called.
  void collect();
  bool is_ready();

  bool has_ended() const { return ended_; }
  bool has_succeeded() const { return ended_ && exit_code() == 0; }
  bool has_failed() const { return ended_ && !(server_.may_end() && exit_code() == 0); }
  int exit_code() const { return status_.shell_code(); }
  int signal() const { return status_.signal; }  // The signal that has killed it; 0: none.
  void send(int signal) const;
  void kill_group(int signal) const;
  // True if it, or a process in its group, exists. Reaps it: after its group is empty, kill_group()
  // does nothing.
  bool has_group();

  // Says how it has ended, with the last lines of its output.
  void say_end(const std::string& app) const;
  void show_last_lines() const;
  std::string last_line() const;

 private:
  std::string log_path() const { return directory_ + "/app-" + server_.role() + ".log"; }
  bool answers_path(int fd) const;

  AppServer server_;
  std::string directory_;
  pid_t pid_ = 0;
  ExitStatus status_;
  bool ended_ = false;
  bool is_group_gone_ = false;
  bool was_ready_ = false;
};

}  // namespace ivy
