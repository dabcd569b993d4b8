// SPDX-License-Identifier: Apache-2.0
// Advice to users when SSH does not work, and the meaning of the OpenSSH client's own messages.
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/ssh/ssh_session.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/options/hosts.h"

namespace ivy {

enum class AskChoice { kMayAsk, kNeverAsk };

// "ssh -p 2222 -l user host true": the command that shows or cures the trouble with this host.
// port: 0 when it is not to be written.
std::string ssh_true(const Host& host, std::uint16_t port, const std::string& config_path,
                     AskChoice ask, const std::vector<std::string>& options = {});

// The same with another command, which prints or ends differently.
std::string ssh_run(const Host& host, std::uint16_t port, const std::string& config_path,
                    const std::vector<std::string>& options, const std::string& command);

// Advice for an SSH agent that accepts connections but does not answer.
std::string mute_agent_fix();

// The host's key is not in known_hosts, or differs from the key there.
LinkDown host_key_failure(const Host& host, const SshTarget& target, const SshHostKey& key,
                          const std::string& config_path);

// Before the link was up: which failure the client's standard error and exit code mean.
LinkFailure classify_client_failure(std::string_view error_text);

// Advice for an error of the OpenSSH client. Returns `try_it`, a command that reproduces the error,
// if the text matches no known one.
std::string client_fix(std::string_view error_text, const std::string& try_it);

// The line of the client's standard error that says most.
std::string telling_line(std::string_view error_text);

}  // namespace ivy
