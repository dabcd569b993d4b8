// SPDX-License-Identifier: Apache-2.0
// Advice to users when SSH does not work, and the interpretation of the OpenSSH client's messages.
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

enum class PromptChoice { kMayPrompt, kNeverPrompt };

// Returns the command that shows or cures the problem with this host: "ssh -p 2222 -l user host
// true". port: 0 omits it.
std::string ssh_true(const Host& host, std::uint16_t port, const std::string& config_path,
                     PromptChoice prompt, const std::vector<std::string>& options = {});

// Returns the command of ssh_true() with `command` in place of `true`.
std::string ssh_run(const Host& host, std::uint16_t port, const std::string& config_path,
                    const std::vector<std::string>& options, const std::string& command);

// Returns the advice for an SSH agent that accepts connections but does not answer.
std::string silent_agent_fix();

// Returns the failure for a host key that is not in known_hosts or differs from the key there.
LinkDown host_key_failure(const Host& host, const SshTarget& target, const SshHostKey& key,
                          const std::string& config_path);

// Returns the failure that the client's standard error describes, before the link was up.
LinkFailure classify_client_failure(std::string_view error_text);

// Returns the advice for an error of the OpenSSH client; if the text is unknown, `try_it`, which is
// a command that reproduces the error.
std::string client_fix(std::string_view error_text, const std::string& try_it);

// Returns the most informative line of the client's standard error.
std::string error_line_of(std::string_view error_text);

}  // namespace ivy
