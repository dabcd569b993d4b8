// SPDX-License-Identifier: Apache-2.0
// The administrator's policy for this host: /etc/ivyrun/policy.toml, owned by root. Thread: any;
// reads a file.
//
//   transports = ["ssh", "agent"]   any of policy_words() (transport_kind.h)
//   interfaces = ["ib0"]            allowed for --iface; the first one is its default
//   ports = "20000-20100"           for all listening ports; the default of --port-range
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
  std::vector<std::pair<std::string, std::string>> forbidden;  // Flag and its location.

  bool allows(const std::string& transport) const;
};

// Returns std::nullopt if the file does not exist, and PermissionDenied if users other than root
// may change it.
Result<std::optional<Policy>> read_policy(const std::string& path);
Result<Policy> parse_policy(const std::string& text, const std::string& path);

// Rejects forbidden flags; the error shows them as they were written.
Result<void> check_flags(const Policy& policy, const Scanned& scanned);
// Returns the error "the policy of this host (FILE) forbids --iface eth0" with `allowed` as the
// fix.
Error forbidden(const Policy& policy, const std::string& what, const std::string& allowed);

}  // namespace ivy
