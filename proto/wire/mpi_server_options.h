// SPDX-License-Identifier: Apache-2.0
// The command line of `ivy-pmix` and of `ivy-node pmi`, which the supervisor writes. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct MpiServerOptions {
  int listen_fd = -1;    // Descriptor on which this host's ranks request their variables.
  int loopback_fd = -1;  // Descriptor to which MPI libraries connect on their own, or -1.
  std::string job_id;
  std::uint32_t generation = 0;
  std::uint32_t host = 0;
  std::vector<std::uint32_t> ranks_on_hosts;  // One entry per host of the job, as in host_names.
  std::vector<std::string> host_names;
  std::string directory;  // The job's directory on this host.
  std::string store;      // Address of the native dialect; empty without a store.
  std::string token_file;
};

inline constexpr const char* kMpiServerUsage =
    "--listen-fd N --job ID --generation G --host K --hosts H\n"
    "    --ranks-on-hosts 2,2 --host-names a,b --directory DIR\n"
    "    [--loopback-fd N] [--token-file FILE [--store ADDRESS]]\n";

// Parses the arguments after the program's name. Fails with InvalidArgument, which names the option
// and the fault.
Result<MpiServerOptions> parse_mpi_server_options(const std::vector<std::string>& arguments);

}  // namespace ivy
