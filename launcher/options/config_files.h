// SPDX-License-Identifier: Apache-2.0
// Defaults of flags and names of transports from files, with the origin of each. The command line
// takes precedence, then IVY_<FLAG>, PET_<FLAG>, the file of --config, the user's file, and the
// host's. Thread: any; reads files.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/option_scan.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct ConfigPaths {
  std::string system = "/etc/ivyrun/config.toml";
  std::string user;  // Empty if there is no home directory.
  std::string policy = "/etc/ivyrun/policy.toml";
};
// Returns the locations. The user's file is in ~/.config/ivyrun, or below XDG_CONFIG_HOME.
ConfigPaths config_paths(const Environment& environment);

// Adds the settings of the files for flags that are not set yet, and the commands of their
// [transports] (exec_command.h); --config none reads no file. The
// message of InvalidArgument contains file, line, and the key that was probably meant.
Result<void> add_config_files(const ConfigPaths& paths, Scanned& scanned);

}  // namespace ivy
