// SPDX-License-Identifier: Apache-2.0
// Locates agents and this user's certificate for them: agent.toml, written by `ivy-agent cert
// --user NAME`, read by ivyrun and ivyctl. Parses TOML (toml++), but no certificates.
//
//   port = 7411
//   ca = "/home/alice/.config/ivyrun/ca.crt"      relative paths start at agent.toml's directory
//   revoked = "/home/alice/.config/ivyrun/ca.crl" optional
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
  std::string certificate;  // The user's, followed by its chain, if any.
  std::string key;
};

// Returns $IVY_AGENT_CONFIG, or $XDG_CONFIG_HOME/ivyrun/agent.toml, or
// $HOME/.config/ivyrun/agent.toml, or an empty path if none of these is set.
std::string agent_config_path(const Environment& environment);

// Returns nothing if the file does not exist and $IVY_AGENT_CONFIG did not name it. Fails with
// InvalidArgument, with file, line and column, also if a key is unknown.
Result<std::optional<AgentConfig>> load_agent_config(const Environment& environment);

// Parses the text of an agent.toml. Pure.
Result<AgentConfig> parse_agent_config(const std::string& text, const std::string& path);

// Rejects, as ssh does, a key of this user that the group or others can read (PermissionDenied). A
// key owned by another user, such as systemd's credentials, may be readable by its group. `renewal`
// is the command that makes a new key.
Result<void> check_key_is_private(const std::string& key_file, const std::string& renewal);

// Returns the sockets on which this user's agent may listen on this host, best first: only
// $IVY_AGENT_SOCKET if it is set; otherwise /run/ivyrun-USER/agent.sock,
// $XDG_RUNTIME_DIR/ivyrun/agent.sock, /tmp/ivyrun-UID/agent.sock.
std::vector<std::string> agent_socket_paths(const Environment& environment, const std::string& user,
                                            std::uint32_t uid);

}  // namespace ivy
