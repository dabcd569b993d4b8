// SPDX-License-Identifier: Apache-2.0
// Reads the environment and the command line of a rank that connects: libraries that only its
// Python environment has, and settings of its user that override ivyrun's. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

struct RankProcess {
  std::vector<std::string> environment;  // NAME=VALUE, as at the start of the process.
  std::vector<std::string> arguments;
  std::string pmix_library;  // The libpmix that it has loaded; empty if none yet.

  // Returns the variable's value; empty if it is not set.
  std::string variable(std::string_view name) const;
};

// Reads the process's files in /proc. Environment and arguments are empty if it has exited or is in
// a namespace that is not visible.
RankProcess read_rank_process(pid_t pid);
// Returns the process's group, or this process's own group if the process is not visible.
gid_t group_of_process(pid_t pid);
// Returns this user's process that holds the socket with this inode; 0 if none is visible.
pid_t process_with_socket(std::uint32_t inode);

}  // namespace ivy
