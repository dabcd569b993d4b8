// SPDX-License-Identifier: Apache-2.0
// The MPI libraries of this host's workers, by what their files say, since all ranks of a world
// must have the same. Thread: the supervisor's loop.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace ivy {

class MpiLibraries {
 public:
  // "Open MPI 5.0.11": the library of a worker that has just called MPI_Init, in its own process or
  // in one below it. Two, where that process has loaded two; none, where its program is static or
  // its files are not to be read.
  std::vector<std::string> of_worker(pid_t worker);

 private:
  std::vector<std::string> of_process(pid_t process);
  const std::string& text_of(const std::string& path);

  std::map<std::string, std::string> texts_;  // The key is the identity of the file.
};

}  // namespace ivy
