// SPDX-License-Identifier: Apache-2.0
// The command line of ivy-agent: verbs and flags. Only options.cc uses CLI11. Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/daemon/net/listen_address.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct ServeCommand {
  std::vector<ListenAddress> listen;
  std::string certificates;  // A directory. If empty, certificate_directories() are searched.
  std::string socket_path;
  std::string state_directory;
  std::optional<std::uint16_t> insecure_loopback;
  std::string metrics_file;  // If empty, no file is written.
  std::string user_name;     // If empty, the account that runs the agent.
};

struct DrainCommand {
  std::string socket_path;  // If empty, all of agent_socket_paths() are tried.
  bool undo = false;
  bool stop_jobs = false;
  std::chrono::seconds wait{0};
};

struct StatusCommand {
  std::string socket_path;  // If empty, all of agent_socket_paths() are tried.
  bool json = false;
};

// --help and --version: the text to print before exiting.
struct TextCommand {
  std::string text;
};

// The verbs ca, cert, renew, revoke and certs: the arguments for ivy-agent-cert.
struct CertificateCommand {
  std::vector<std::string> words;
};

using AgentCommand =
    std::variant<ServeCommand, DrainCommand, StatusCommand, TextCommand, CertificateCommand>;

// Returns InvalidArgument for a usage error. `uid` is part of the last default path of the socket.
Result<AgentCommand> parse_agent_command(const std::vector<std::string>& arguments,
                                         const Environment& environment, std::uint32_t uid);

// Parses "7411", ":7411", "10.0.0.1:7411" and "[::1]:7411". Rejects names, because a name may have
// several addresses on a host.
Result<ListenAddress> parse_listen_address(const std::string& text);

}  // namespace ivy
