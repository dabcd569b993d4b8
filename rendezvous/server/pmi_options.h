// The options of `ivy-node pmi` (pmi_serve.h). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::store {

struct PmiOptions {
  int listen_fd = -1;
  int loopback_fd = -1;  // A TCP socket for MPI libraries that connect by themselves; -1: none.
  std::string job_id;
  std::uint32_t generation = 0;
  std::uint32_t host = 0;
  std::vector<std::uint32_t> ranks_on_hosts;
  std::vector<std::string> host_names;
  std::string directory;
  std::string store;  // Its native address; empty: there is none.
  std::string token_file;
};

// InvalidArgument: they are wrong, or do not fit together.
Result<PmiOptions> parse_pmi_options(int argc, const char* const* argv);

}  // namespace ivy::store
