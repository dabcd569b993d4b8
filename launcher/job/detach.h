// SPDX-License-Identifier: Apache-2.0
// --detach: forks the launcher before it has any thread, loop or socket. The parent stays in the
// foreground until all workers run, and then exits with 0; if the launcher exits before that, so
// does the parent, in the same way.
//
//   parent   waits on a pipe; passes signals on that only it receives
//   launcher runs the job; leave(): own session, no terminal, ivyrun.log as its standard error
#pragma once

#include <memory>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct DetachNotice {
  std::string job_id;
  std::string log_dir;    // An absolute path.
  std::string name = {};  // --name.
};

class Detachment {
 public:
  // Forks. Returns in the launcher only: the parent waits, prints the notice and exits.
  static Result<std::unique_ptr<Detachment>> begin(const DetachNotice& notice);
  Detachment(const Detachment&) = delete;
  Detachment& operator=(const Detachment&) = delete;

  // All workers run: moves the launcher into the background. log_fd: becomes standard output and
  // error.
  void leave(int log_fd);
  bool has_left() const { return !pipe_; }

 private:
  explicit Detachment(Descriptor pipe) : pipe_(std::move(pipe)) {}
  Descriptor pipe_;  // To the parent; none once the launcher has left.
};

// The notice that the parent prints when the launcher has left. Pure.
std::string detach_notice(const DetachNotice& notice, int launcher_pid);

}  // namespace ivy
