// SPDX-License-Identifier: Apache-2.0
// A server that the supervisor keeps beside the workers, such as the job's store: a child outside
// their containment, which a stop leaves to the last worker. It dies with the supervisor.
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
  // A scheduler signals all processes of our step, and means the workers: workers need the server
  // for their last reports.
  bool in_step = false;
  // NAME=VALUE entries; if empty, the supervisor's environment is inherited.
  std::vector<std::string> environment = {};
  // Arguments that grow with the number of hosts: they follow the others in a file
  // (argument_file.h).
  std::vector<std::string> long_arguments = {};
};

// Its process; -1 sets errno. A program that cannot be executed ends with exit code 126 or 127, and
// `exec_error`, if given, can be read for why (server_end()).
pid_t start_server(ServerChild server, Descriptor* exec_error = nullptr);

// "the store was killed by signal 9 (Killed)", "the store ended with exit code 3", "the store could
// not be executed: Argument list too long". Call it once the process has been reaped.
std::string server_end(const std::string& name, int wait_status,
                       const Descriptor& exec_error = Descriptor());

}  // namespace ivy
