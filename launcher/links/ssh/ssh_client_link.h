// SPDX-License-Identifier: Apache-2.0
// The link through the user's own ssh program: the same bytes on its standard input and output. ssh
// supports everything in a site's configuration, but costs a process per host. Thread: the loop's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/links/command_link.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/links/ssh/ssh_state.h"

namespace ivy {

// Returns the whole argv: the words of --ssh-command, or `ssh`. A program named "ssh" also gets
// options that disable prompts and limit its waits.
std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const SshTarget& target, const std::string& config_path,
                                            const std::string& remote_command);

class SshClientLink final : public CommandLink {
 public:
  // target: only its host name is used before open() has read the configuration.
  SshClientLink(std::shared_ptr<TransportContext> context, Host host, SshTarget target,
                HostLinkEvents& owner);

 private:
  SshState& ssh() const { return *context_->part<SshState>(); }
  // CommandLink
  Awaitable<void> run() override;
  LinkDown start_failure(const Error& error) const override;
  LinkDown entry_timeout() const override;
  LinkDown end_reason() const override;
  LinkStep delayed_step() const override;

  Awaitable<void> bypass_silent_agent();  // Bypasses an SSH agent that does not answer.
  ChildRequest client_request() const;
  bool is_redial() const { return request_.reattach || request_.again; }
  LinkDown broken_connection() const;
  LinkDown connection_failure() const;
  RemoteText printed_reason() const;
  LinkDown client_failure(LinkFailure failure, const std::string& message) const;
  // Returns a command that shows to the user whether the client can log in.
  std::string test_command() const;

  SshTarget target_;
  std::string agent_error_;  // The error of an SSH agent that does not answer; else empty.
};

}  // namespace ivy
