// SPDX-License-Identifier: Apache-2.0
// The MPI libraries that this host's workers have loaded, identified by the contents of their
// files. All ranks of a world must have the same. Thread: any, one at a time; reads users' files.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace ivy {

class MpiLibraries {
 public:
  // Returns "Open MPI 5.0.11" for a worker that has just called MPI_Init in its own process or in
  // one below it: two libraries if that process has loaded two; none if its program is static or
  // its files cannot be read.
  std::vector<std::string> of_worker(pid_t worker);

 private:
  std::vector<std::string> of_process(pid_t process);
  const std::string& text_of(const std::string& path);

  std::map<std::string, std::string> texts_;  // The key is the identity of the file.
};

}  // namespace ivy
