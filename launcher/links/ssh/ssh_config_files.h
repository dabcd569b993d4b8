// The ssh configuration files of this user, read once. Thread: any; reads small files.
#pragma once

#include <string>
#include <vector>

#include "launcher/links/ssh/ssh_config_check.h"
#include "proto/contract/status.h"

namespace ivy {

struct SshConfigFiles {
  SshUser user;
  std::vector<std::string> texts;  // The user's, then the system's, with their includes inside.
  Result<void> readable;           // An error when IVY_SSH_CONFIG names what cannot be read.
  std::string override_path;  // IVY_SSH_CONFIG: this file alone, also given to the client by -F.
};

SshConfigFiles read_ssh_config_files();

// One file with its Include lines replaced (16 levels, as OpenSSH). A missing file is empty.
// directory: what relative names in Include lines belong to.
std::string read_ssh_config(const std::string& path, const std::string& directory,
                            const SshUser& user, int depth = 0);

}  // namespace ivy
