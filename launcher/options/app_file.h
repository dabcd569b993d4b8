// SPDX-License-Identifier: Apache-2.0
// Apps defined in files: share/ivyrun/apps/NAME.toml next to the programs, and users' files
// (docs/apps.md). Thread: any; reads files.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/app_table.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Returns the search path: the user's (~/.config/ivyrun/apps), the host's (/etc/ivyrun/apps),
// ivyrun's.
std::vector<std::string> app_directories(const Environment& environment);

// `wanted` is a name, or a path that contains a / or ends with .toml. The message of
// InvalidArgument lists the apps that were found, or reads "PATH:LINE: what".
Result<AppSpec> find_app(const std::string& wanted, const std::vector<std::string>& directories);

Result<AppSpec> parse_app(const std::string& text, const std::string& path, std::string name);

}  // namespace ivy
