// SPDX-License-Identifier: Apache-2.0
// Identifies the MPI libraries that this host's workers have loaded, by the contents of their
// files. All ranks of a world must have the same one. Not thread-safe; reads users' files.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace ivy {

class MpiLibraries {
 public:
  // Returns, for example, "Open MPI 5.0.11" for a worker that has just called MPI_Init in its own
  // process or in one below it. Returns two libraries if that process has loaded two, and none if
  // its program is static or its files cannot be read.
  std::vector<std::string> of_worker(pid_t worker);

 private:
  std::vector<std::string> of_process(pid_t process);
  const std::string& text_of(const std::string& path);

  std::map<std::string, std::string> texts_;  // By identity of the file.
};

}  // namespace ivy
