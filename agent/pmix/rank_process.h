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
  std::vector<std::string> environment;  // NAME=VALUE, as the process was started with.
  std::vector<std::string> arguments;
  std::string pmix_library;  // The libpmix that it has loaded; empty: none yet.

  // Empty if it is not set.
  std::string variable(std::string_view name) const;
};

// Empty if the process has exited, or is in a namespace that is not visible.
RankProcess read_rank_process(pid_t pid);
// Returns the group of the process; this process's own if it is not visible.
gid_t group_of_process(pid_t pid);
// The process of this user that holds the socket with this inode; 0: none that we see.
pid_t process_with_socket(std::uint32_t inode);

}  // namespace ivy
