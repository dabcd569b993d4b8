// SPDX-License-Identifier: Apache-2.0
// Tells where agents are and how we identify ourselves to them: agent.toml, written by `ivy-agent
// cert --user NAME`, read by ivyrun and ivyctl.
// Knows TOML (toml++), no certificate.
//
//   port = 7411
//   ca = "/home/alice/.config/ivyrun/ca.crt"      relative paths: beside agent.toml
//   revoked = "/home/alice/.config/ivyrun/ca.crl" may be absent
//   certificate = "..."
//   key = "..."
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

inline constexpr std::uint16_t kDefaultAgentPort = 7411;

struct AgentConfig {
  std::uint16_t port = kDefaultAgentPort;
  std::string ca;           // Absolute paths of PEM files.
  std::string revoked;      // Empty if there is no revocation list.
  std::string certificate;  // The user's, with any chain.
  std::string key;
};

// $IVY_AGENT_CONFIG, else $XDG_CONFIG_HOME/ivyrun/agent.toml, else $HOME/.config/ivyrun/agent.toml.
// Empty when none of these is set.
std::string agent_config_path(const Environment& environment);

// Nothing when there is no such file and $IVY_AGENT_CONFIG did not name it. InvalidArgument says
// file, line and column; an unknown key is refused.
Result<std::optional<AgentConfig>> load_agent_config(const Environment& environment);

// Pure.
Result<AgentConfig> parse_agent_config(const std::string& text, const std::string& path);

// Like ssh, refuses a key of ours that the group or others can read (PermissionDenied), so that the
// user notices; a key owned by another user, such as systemd's credentials, may be readable by its
// group. `renewal` is the command that makes another.
Result<void> check_key_is_private(const std::string& key_file, const std::string& renewal);

// Returns the sockets on which this user's agent may listen on this host, best first: only
// $IVY_AGENT_SOCKET if it is set; /run/ivyrun-USER/agent.sock, $XDG_RUNTIME_DIR/ivyrun/agent.sock,
// /tmp/ivyrun-UID/agent.sock.
std::vector<std::string> agent_socket_places(const Environment& environment,
                                             const std::string& user, std::uint32_t uid);

}  // namespace ivy
