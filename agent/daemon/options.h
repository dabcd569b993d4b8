// SPDX-License-Identifier: Apache-2.0
// The command line of ivy-agent: verbs and flags. CLI11 is known in options.cc only. Thread: any;
// pure but for the environment that is passed in.
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
  std::string certificates;  // Directory; empty: the usual places.
  std::string socket_path;
  std::string state_directory;
  std::optional<std::uint16_t> insecure_loopback;
  std::string user_name;  // Empty: the account that runs it.
};

struct DrainCommand {
  std::string socket_path;  // Empty: all of agent_socket_places() are tried.
  bool undo = false;
  bool stop_jobs = false;
  std::chrono::seconds wait{0};
};

struct StatusCommand {
  std::string socket_path;  // Empty: all of agent_socket_places() are tried.
  bool json = false;
};

// --help and --version: print it and leave.
struct TextCommand {
  std::string text;
};

// ca, cert, renew, revoke, certs: arguments of ivy-agent-cert.
struct CertificateCommand {
  std::vector<std::string> words;
};

using AgentCommand =
    std::variant<ServeCommand, DrainCommand, StatusCommand, TextCommand, CertificateCommand>;

// `uid` only names the last of the default places. InvalidArgument: a usage error.
Result<AgentCommand> parse_agent_command(const std::vector<std::string>& arguments,
                                         const Environment& environment, std::uint32_t uid);

// "7411", ":7411", "10.0.0.1:7411", "[::1]:7411"; names are refused: a host may have several
// addresses for one.
Result<ListenAddress> parse_listen_address(const std::string& text);

}  // namespace ivy
