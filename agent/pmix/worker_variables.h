// The variables of a rank: libpmix's, and what Open MPI needs beside them. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// `from_libpmix`: NAME=VALUE, as PMIx_server_setup_fork() makes them.
std::vector<std::string> worker_variables(std::vector<std::string> from_libpmix,
                                          std::string_view job_id);

}  // namespace ivy
