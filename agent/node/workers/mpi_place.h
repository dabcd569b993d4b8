// SPDX-License-Identifier: Apache-2.0
// A worker's place in its job's MPI world, as variables by which any MPI library finds it: that of
// the worker's own program, and those of programs that a shell, make or Python starts. They name
// ports behind which this host's servers are started by the first library that connects
// (supervisor/mpi_servers.h). Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/env.h"

namespace ivy {

struct MpiPlace {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 0;
  std::uint16_t pmi_port = 0;
  std::uint16_t pmix_port = 0;
  std::uint32_t host = 0;
  std::string host_name;
  std::string pmix_namespace;  // The job's, as proto/wire/mpi_names.h makes it.
  std::string directory;       // The PMIx server's own; made when it starts.
};

// Returns PMI_*, PMIX_* and related variables.
Environment mpi_place_variables(const MpiPlace& place);

struct MpiSettings {
  std::string job_id;
  std::string segment_directory;  // Open MPI's shared memory segments; removed with the job.
  bool is_oversubscribed = false;
};

// Returns settings that help Open MPI and Intel MPI, and that the user may override.
Environment mpi_settings(const MpiSettings& settings);

// A setting that mpi_settings() has made for an outer job or for another generation of this one.
bool is_old_mpi_setting(const std::string& value);

}  // namespace ivy
