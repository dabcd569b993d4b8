// SPDX-License-Identifier: Apache-2.0
// Starts a server that the supervisor runs in addition to the workers, such as the job's store. It
// is a child outside the workers' containment, so a stop leaves it running until the last worker
// has exited. It dies with the supervisor.
//
// Thread: any that may fork. Lifetime: the caller reaps it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/os/descriptor.h"

namespace ivy {

struct ServerChild {
  std::string program;  // The absolute path of its file.
  std::vector<std::string> arguments;
  // The supervisor's descriptors and their numbers in the child. All others are closed there.
  std::vector<std::pair<int, int>> descriptors;
  // A scheduler signals all processes of our step but means only the workers; the server ignores
  // such signals, because workers need it for their last reports.
  bool in_step = false;
  // NAME=VALUE entries; if empty, the supervisor's environment is inherited.
  std::vector<std::string> environment = {};
  // Arguments whose size grows with the number of hosts. They follow the others, but are passed in
  // a file (argument_file.h).
  std::vector<std::string> long_arguments = {};
};

// Returns the server's pid, or -1 with errno set. If the program cannot be executed, the child
// exits with code 126 or 127 and writes the reason to `exec_error`, if given, for server_end().
pid_t start_server(ServerChild server, Descriptor* exec_error = nullptr);

// Returns "the store was killed by signal 9 (Killed)", "the store exited with code 3" or "the
// store could not be executed: Argument list too long". Call it after the process has been reaped.
std::string server_end(const std::string& name, int wait_status,
                       const Descriptor& exec_error = Descriptor());

}  // namespace ivy
