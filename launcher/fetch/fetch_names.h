// SPDX-License-Identifier: Apache-2.0
// Names on this machine for files of --fetch. A host may be malicious: every path that it sends is
// checked here. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

// Fails with InvalidArgument unless `path` names something below a directory: relative, with no
// empty part, "." or "..", and no longer than Linux allows.
Result<void> check_fetched_path(std::string_view path);

// Returns the name of a host's directory: its name, without slashes.
std::string fetched_host_name(std::string_view host);
// Returns "rank00003", as in the names of log files.
std::string fetched_rank_name(int rank);

// Returns DIRECTORY, DIRECTORY.2, DIRECTORY.3...
std::string numbered_directory(const std::string& directory, int number);

}  // namespace ivy
