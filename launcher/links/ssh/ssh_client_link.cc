// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_client_link.h"

#include <algorithm>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_agent.h"

namespace ivy {

namespace {

// Returns true unless --ssh-command names a program other than OpenSSH's.
bool is_openssh(const Options& options) {
  return options.ssh_command.empty() || is_ssh_program(options.ssh_command.front());
}

std::uint16_t port_of(const Options& options, const Host& host) {
  return host.port != 0 ? host.port : options.ssh_port;
}

}  // namespace

std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const SshTarget& target, const std::string& config_path,
                                            const std::string& remote_command) {
  std::vector<std::string> words = options.ssh_command;
  if (words.empty()) words.emplace_back("ssh");
  if (is_openssh(options)) {
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
  if (const std::uint16_t port = port_of(options, host); port != 0) {
    words.emplace_back("-p");
    words.push_back(std::to_string(port));
  }
  if (!host.user.empty()) {
    words.emplace_back("-l");
    words.push_back(host.user);
  }
  words.insert(words.end(), options.ssh_args.begin(), options.ssh_args.end());
  if (is_openssh(options)) words.emplace_back("--");
  words.push_back(host.name);
  words.push_back(remote_command);
  return words;
}

SshClientLink::SshClientLink(std::shared_ptr<TransportContext> context, Host host, SshTarget target,
                             HostLinkEvents& owner)
    : CommandLink(std::move(context), std::move(host), owner), target_(std::move(target)) {}

Awaitable<void> SshClientLink::run() {
  const Result<void> account = co_await ssh().read_account(sequence_, host_.name);
  if (!account.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, account.error()));
  const Result<std::shared_ptr<NodeUpload>> upload = co_await context_->node_upload(sequence_);
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
  const std::string no_input;
  co_await carry(request, no_input);
}

// Queries the agent first, and makes the client ignore it if it does not answer: the client would
// wait for it for ever.
Awaitable<void> SshClientLink::bypass_silent_agent() {
  const std::string path = ssh_agent_path(target_);
  if (!is_openssh(context_->options()) || path.empty()) co_return;
  co_await report_progress(
      LinkStep("ssh client: waiting for the SSH agent at " + path, silent_agent_fix()));
  const Result<Descriptor> agent =
      co_await ssh().agent(sequence_, host_.name, target_, is_redial());
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
  if (!is_openssh(context_->options()))
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
  return was_up() ? broken_connection() : connection_failure();
}

LinkDown SshClientLink::broken_connection() const {
  LinkDown down = client_failure(LinkFailure::kBroken, "the ssh client's connection closed");
  down.message += printed_reason();
  down.fix.clear();
  return down;
}

LinkDown SshClientLink::connection_failure() const {
  LinkFailure failure = classify_client_failure(error_text());
  if (failure == LinkFailure::kBroken) failure = LinkFailure::kBootstrap;
  LinkDown down = client_failure(failure, "the ssh client could not connect");
  down.message += printed_reason();
  if (agent_error_.empty()) return down;
  down.message += " (" + agent_error_ + ")";
  down.fix = silent_agent_fix();
  // Not final, because the agent may answer when the owner dials again.
  if (is_redial()) down.failure = LinkFailure::kUnreachable;
  return down;
}

// Returns ": REASON (EXIT)", from the client's output and exit code. Either part may be missing.
RemoteText SshClientLink::printed_reason() const {
  const std::string reason = error_line_of(error_text());
  const std::string printed = last_line(noise());
  RemoteText text;
  if (!reason.empty() || !printed.empty()) text += ": " + (reason.empty() ? printed : reason);
  // ssh exits with 255 for all reasons of its own, so only another code is worth printing.
  const auto& status = exit_status();
  if (status && !status->is_success() && (reason.empty() || status->code != 255))
    text += " (" + describe(*status) + ")";
  return text;
}

LinkDown SshClientLink::client_failure(LinkFailure failure, const std::string& message) const {
  return LinkDown{failure, message, client_fix(error_text(), test_command())};
}

std::string SshClientLink::test_command() const {
  return ssh_true(host_, port_of(context_->options(), host_), ssh().config_path(),
                  PromptChoice::kNeverPrompt, target_.client_options);
}

}  // namespace ivy
