// SPDX-License-Identifier: Apache-2.0
// A worker's place in its job's MPI world, as variables that any MPI library reads: in the worker's
// program, and in programs that a shell, make or Python starts. They name the ports of this host's
// servers, which start when the first library connects (supervisor/mpi_servers.h). Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/env.h"

namespace ivy {

struct MpiIdentity {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 0;
  std::uint16_t pmi_port = 0;
  std::uint16_t pmix_port = 0;
  std::uint32_t host = 0;
  std::string host_name;
  std::string pmix_namespace;  // The job's, from proto/wire/mpi_names.h.
  std::string directory;       // The PMIx server's directory, created when the server starts.
};

// Returns PMI_*, PMIX_* and related variables.
Environment mpi_identity_variables(const MpiIdentity& identity);

struct MpiSettings {
  std::string job_id;
  std::string segment_directory;  // Open MPI's shared memory segments; removed with the job.
  bool is_oversubscribed = false;
};

// Returns settings that help Open MPI and Intel MPI; the user may override them.
Environment mpi_settings(const MpiSettings& settings);

// Returns true for a setting that mpi_settings() made for an outer job or for another generation of
// this one.
bool is_old_mpi_setting(const std::string& value);

}  // namespace ivy
