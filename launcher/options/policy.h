// SPDX-License-Identifier: Apache-2.0
// The administrator's policy for this host: /etc/ivyrun/policy.toml, owned by root. Thread: any;
// reads a file.
//
//   transports = ["ssh", "agent"]   any of ssh, agent, slurm, join; this host needs none
//   interfaces = ["ib0"]            allowed for --iface; the first one is its default
//   ports = "20000-20100"           for everything that listens; the default of --port-range
//   forbid = ["ssh-command"]        flags that may not be used
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/option_scan.h"
#include "proto/contract/status.h"

namespace ivy {

struct Policy {
  std::string path;
  std::optional<std::vector<std::string>> transports;
  std::vector<std::string> interfaces;
  std::optional<std::pair<std::uint16_t, std::uint16_t>> ports;
  std::vector<std::pair<std::string, std::string>> forbidden;  // Flag, and its place in the file.

  bool allows(const std::string& transport) const;
};

// Returns nothing if there is no such file. PermissionDenied: users other than root may change it.
Result<std::optional<Policy>> read_policy(const std::string& path);
Result<Policy> parse_policy(const std::string& text, const std::string& path);

// Refuses flags that it forbids, as they were written.
Result<void> check_flags(const Policy& policy, const Scanned& scanned);
// "the policy of this host (FILE) forbids --iface eth0"; `allowed` is the fix.
Error forbidden(const Policy& policy, const std::string& what, const std::string& allowed);

}  // namespace ivy
