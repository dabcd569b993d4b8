// SPDX-License-Identifier: Apache-2.0
// Apps as files: share/ivyrun/apps/NAME.toml beside the programs, and users' own (docs/apps.md).
// Thread: any; reads files.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/app_table.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// In the order of search: the user's (~/.config/ivyrun/apps), the host's (/etc/ivyrun/apps), ours.
std::vector<std::string> app_directories(const Environment& environment);

// `wanted`: a name, or a path that holds a / or ends with .toml. InvalidArgument names the apps
// that were found, or reads "PATH:LINE: what".
Result<AppSpec> find_app(const std::string& wanted, const std::vector<std::string>& directories);

Result<AppSpec> parse_app(const std::string& text, const std::string& path, std::string name);

}  // namespace ivy
