// The command line of `ivy-pmix` and of `ivy-node pmi`, which the supervisor writes. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct MpiServerOptions {
  int listen_fd = -1;    // Where this host's ranks ask for their variables.
  int loopback_fd = -1;  // Where their MPI libraries connect by themselves; -1: nowhere.
  std::string job_id;
  std::uint32_t generation = 0;
  std::uint32_t host = 0;
  std::vector<std::uint32_t> ranks_on_hosts;  // As many as the job has hosts, as are names.
  std::vector<std::string> host_names;
  std::string directory;  // The job's own directory on this host.
  std::string store;      // Native dialect; empty: there is none.
  std::string token_file;
};

inline constexpr const char* kMpiServerUsage =
    "--listen-fd N --job ID --generation G --host K --hosts H\n"
    "    --ranks-on-hosts 2,2 --host-names a,b --directory DIR\n"
    "    [--loopback-fd N] [--token-file FILE [--store ADDRESS]]\n";

// The arguments behind the program's name. InvalidArgument names the option and what is wrong with
// it.
Result<MpiServerOptions> parse_mpi_server_options(const std::vector<std::string>& arguments);

}  // namespace ivy
