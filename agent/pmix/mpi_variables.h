// SPDX-License-Identifier: Apache-2.0
// The variables of a rank: libpmix's, and others that Open MPI needs. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "agent/pmix/rank_process.h"

namespace ivy {

struct WorkerSettings {
  std::string job_id;
  bool is_oversubscribed = false;
  std::string segment_directory;  // Directory of Open MPI's shared memory segments.
};

// `from_libpmix`: NAME=VALUE, from PMIx_server_setup_fork(). Does not override variables that the
// rank's user has set for Open MPI.
std::vector<std::string> mpi_variables(std::vector<std::string> from_libpmix,
                                       const WorkerSettings& settings, const RankProcess& rank);

}  // namespace ivy
