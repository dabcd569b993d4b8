// The variables of a rank: libpmix's, and what Open MPI needs beside them. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

struct WorkerSettings {
  std::string job_id;
  bool is_oversubscribed = false;
  // Where Open MPI's segments of shared memory are to be; empty: where it puts them itself. 4.1
  // names them by machine and local rank, so that ranks of several pretended hosts would take each
  // other's.
  std::string segment_directory = {};
};

// `from_libpmix`: NAME=VALUE, as PMIx_server_setup_fork() makes them.
std::vector<std::string> worker_variables(std::vector<std::string> from_libpmix,
                                          const WorkerSettings& settings);

}  // namespace ivy
