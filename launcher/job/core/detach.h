// SPDX-License-Identifier: Apache-2.0
// --detach: forks the launcher before it has any thread, loop or socket. The parent stays in the
// foreground until all workers run, and then exits with 0. If the launcher exits before that, the
// parent exits in the same way.
//
//   parent    waits on a pipe, and passes on signals that only it receives
//   launcher  runs the job; leave() gives it its own session without a terminal, and ivyrun.log as
//             its standard output and error
#pragma once

#include <memory>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The contents of the notice that the parent prints.
struct DetachNotice {
  std::string job_id;
  std::string log_dir;    // An absolute path.
  std::string name = {};  // --name.
};

class Detachment {
 public:
  // Forks. Returns only in the launcher: the parent waits, prints the notice and exits.
  static Result<std::unique_ptr<Detachment>> begin(const DetachNotice& notice);
  Detachment(const Detachment&) = delete;
  Detachment& operator=(const Detachment&) = delete;

  // Moves the launcher into the background once all workers run. log_fd becomes its standard output
  // and error.
  void leave(int log_fd);
  bool has_left() const { return !pipe_; }

 private:
  explicit Detachment(Descriptor pipe) : pipe_(std::move(pipe)) {}
  Descriptor pipe_;  // To the parent; closed once the launcher has left the foreground.
};

// Returns the notice that the parent prints when the launcher has left the foreground. Pure.
std::string detach_notice(const DetachNotice& notice, int launcher_pid);

}  // namespace ivy
