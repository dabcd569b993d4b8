// SPDX-License-Identifier: Apache-2.0
// Commands that reach hosts instead of SSH: --exec COMMAND, and the names that --transport accepts
// for such commands (docs/exec.md). A command runs on this machine, once for each host, without a
// shell. Its words may contain
//
//   {host}          the host's name; every command must contain it
//   {user} {port}   the host's user and port as written for the host (port: or --ssh-port)
//
// and are followed by the words of the shell to start there, which reads from standard input.
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/hosts.h"
#include "launcher/options/option_types.h"
#include "proto/contract/status.h"

namespace ivy {

// Returns ivyrun's own: kubectl, docker, podman.
const std::vector<NamedCommand>& own_commands();

// Splits a command like quoted_words(), and rejects one that does not contain {host}.
Result<std::vector<std::string>> parse_exec(std::string_view text);

// In the following functions, `command` is from parse_exec(), and default_port (--ssh-port, or 0)
// is the port of hosts that have none.

// Rejects hosts that the command cannot reach: no hosts at all, or hosts of which it would ignore
// or lack the user or the port.
Result<void> check_exec_hosts(const std::vector<std::string>& command, std::uint16_t default_port,
                              const std::vector<Host>& hosts);

// Returns the words to run for a host, with those of the shell.
std::vector<std::string> words_for_host(const std::vector<std::string>& command,
                                        std::uint16_t default_port, const Host& host);

}  // namespace ivy
