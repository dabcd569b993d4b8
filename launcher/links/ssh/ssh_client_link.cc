// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_client_link.h"

#include <algorithm>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_agent.h"

namespace ivy {

std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const SshTarget& target, const std::string& config_path,
                                            const std::string& remote_command) {
  std::vector<std::string> words = options.ssh_command;
  if (words.empty()) words.emplace_back("ssh");
  const bool is_ssh = is_ssh_program(words.front());
  if (is_ssh) {
    // The user's own options come first, because ssh uses the first value of an option.
    for (const char* const word :
         {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
          "-o", "ServerAliveCountMax=6", "-o", "ForwardX11=no", "-o", "ForwardAgent=no", "-o",
          "ClearAllForwardings=yes"}) {
      words.emplace_back(word);
    }
    for (const std::string& option : target.client_options)
      words.insert(words.end(), {"-o", option});
    if (!config_path.empty()) {
      words.emplace_back("-F");
      words.push_back(config_path);
    }
  }
  const std::uint16_t port = host.port != 0 ? host.port : options.ssh_port;
  if (port != 0) {
    words.emplace_back("-p");
    words.push_back(std::to_string(port));
  }
  if (!host.user.empty()) {
    words.emplace_back("-l");
    words.push_back(host.user);
  }
  words.insert(words.end(), options.ssh_args.begin(), options.ssh_args.end());
  if (is_ssh) words.emplace_back("--");
  words.push_back(host.name);
  words.push_back(remote_command);
  return words;
}

SshClientLink::SshClientLink(std::shared_ptr<TransportContext> context, Host host, SshTarget target,
                             HostLinkEvents& owner)
    : CommandLink(std::move(context), std::move(host), owner), target_(std::move(target)) {}

Awaitable<void> SshClientLink::run() {
  const Result<NodeUpload*> upload = co_await ssh().upload(sequence_, host_.name);
  if (!upload.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, upload.error()));
  slot_ = co_await context_->handshakes().acquire(sequence_);
  co_await bypass_silent_agent();
  co_await report_progress(
      LinkStep("ssh client: connecting",
               "try: " + test_command() + ", or allow more time: --start-timeout"));
  const Result<Addresses> addresses =
      co_await addresses_of(sequence_, context_->resolvers(), target_.host_name);
  const PeerAddresses route = addresses.ok() ? route_to(*addresses) : PeerAddresses{};
  up_.transport = Transport::kSshClient;
  up_.peer_address = route.peer;
  up_.local_address = route.local;
  up_.remote_command = context_->command_for(**upload, host_);
  const ChildRequest request = client_request();
  const std::string input;
  co_await carry(request, input);
}

// The client would wait for ever for an agent that accepts connections but does not answer: queries
// the agent first, and makes the client ignore it in that case.
Awaitable<void> SshClientLink::bypass_silent_agent() {
  const std::string path = ssh_agent_path(target_);
  const std::vector<std::string>& command = context_->options().ssh_command;
  const bool is_ssh = command.empty() || is_ssh_program(command.front());
  if (!is_ssh || path.empty()) co_return;
  co_await report_progress(
      LinkStep("ssh client: waiting for the SSH agent at " + path, silent_agent_fix()));
  const bool is_redial = request_.reattach || request_.again;
  const Result<Descriptor> agent = co_await ssh().agent(sequence_, host_.name, target_, is_redial);
  if (agent.ok() || agent.error().code != Code::kDeadlineExceeded) co_return;
  agent_error_ = agent.error().message;
  const std::string option = "IdentityAgent=none";
  if (std::find(target_.client_options.begin(), target_.client_options.end(), option) ==
      target_.client_options.end())
    target_.client_options.push_back(option);
}

ChildRequest SshClientLink::client_request() const {
  ChildRequest request;
  request.arguments = ssh_client_command(context_->options(), host_, target_, ssh().config_path(),
                                         up_.remote_command);
  // The user's own program may need all of the user's variables.
  if (!is_ssh_program(request.arguments.front()))
    request.environment = environment_texts(environment_of(environ));
  return request;
}

LinkDown SshClientLink::start_failure(const Error& error) const {
  return LinkDown{LinkFailure::kBootstrap, error.message,
                  "install the OpenSSH client, or give its path with --ssh-command"};
}

LinkDown SshClientLink::entry_timeout() const {
  return client_failure(LinkFailure::kUnreachable, "the ssh client made no progress for 90 s");
}

// A client that uses a master connection waits for ever if the master was stopped.
LinkStep SshClientLink::delayed_step() const {
  if (has_printed() || target_.control_path.empty()) return {};
  return {"ssh client: no response, perhaps because its ControlMaster at " + target_.control_path +
              " hangs",
          "stop that ssh (ps, kill), or bypass it: --ssh-args '-o ControlPath=none'"};
}

LinkDown SshClientLink::end_reason() const {
  const std::string reason = error_line_of(error_text());
  const std::string printed = last_line(noise());
  LinkFailure failure = was_up() ? LinkFailure::kBroken : classify_client_failure(error_text());
  if (!was_up() && failure == LinkFailure::kBroken) failure = LinkFailure::kBootstrap;
  LinkDown down = client_failure(failure, was_up() ? "the ssh client's connection closed"
                                                   : "the ssh client could not connect");
  if (!reason.empty() || !printed.empty())
    down.message += ": " + (reason.empty() ? printed : reason);
  // ssh exits with 255 for all reasons of its own, so only another code is worth printing.
  const auto& status = exit_status();
  if (status && !status->is_success() && (reason.empty() || status->code != 255)) {
    down.message += " (" + describe(*status) + ")";
  }
  if (was_up()) down.fix.clear();
  if (!was_up() && !agent_error_.empty()) {
    down.message += " (" + agent_error_ + ")";
    down.fix = silent_agent_fix();
    // Not final, because the agent may answer when the owner dials again.
    if (request_.reattach || request_.again) down.failure = LinkFailure::kUnreachable;
  }
  return down;
}

LinkDown SshClientLink::client_failure(LinkFailure failure, const std::string& message) const {
  return LinkDown{failure, message, client_fix(error_text(), test_command())};
}

std::string SshClientLink::test_command() const {
  const std::uint16_t port = host_.port != 0 ? host_.port : context_->options().ssh_port;
  return ssh_true(host_, port, ssh().config_path(), PromptChoice::kNeverPrompt,
                  target_.client_options);
}

}  // namespace ivy
