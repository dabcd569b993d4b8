// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_client_link.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_agent.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// Time without progress that is allowed from the start of the client until the relay runs; it
// includes logins through several jump hosts.
constexpr std::chrono::seconds kEntryTimeout{90};
// How often to check whether the bundle makes progress.
constexpr std::chrono::seconds kPollInterval{1};
// A login over an existing master connection takes less than this; then the master may hang.
constexpr std::chrono::seconds kMasterTimeout{5};
// How long to wait for the client's exit code and last messages after its output has ended.
constexpr std::chrono::milliseconds kErrorOutputTimeout{500};

}  // namespace

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
    : SequencedLink(context->loop(), owner),
      context_(std::move(context)),
      host_(std::move(host)),
      target_(std::move(target)) {}

SshClientLink::~SshClientLink() { close(); }

void SshClientLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(run());
}

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
  if (const Result<void> started = start_client(**upload); !started) {
    co_return fail(LinkDown{LinkFailure::kBootstrap, started.error().message,
                            "install the OpenSSH client, or give its path with --ssh-command"});
  }
  const bool gets_on = co_await enter_relay();
  if (!gets_on) {
    client_->signal(SIGTERM);
    co_return fail(
        client_failure(LinkFailure::kUnreachable, "the ssh client made no progress for 90 s"));
  }
  co_await await_end();
  fail(end_reason());
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

// Waits until the relay has started or the client's output has ended. Returns false if the client
// makes no progress for kEntryTimeout.
Awaitable<bool> SshClientLink::enter_relay() {
  const auto set_wake = [this](const Arrival<bool>& arrive) { wake_ = arrive; };
  std::size_t unwritten = 0;
  std::chrono::nanoseconds timeout = kMasterTimeout;
  while (!entry_->is_up() && !output_ended_) {
    co_await sequence_.wait_at_most<bool>(kPollInterval, set_wake);
    if (!entry_->needed_bundle().empty()) {
      const Result<NodeBundle> bundle =
          co_await context_->bundle(sequence_, entry_->needed_bundle());
      moved_at_ns_ = monotonic_ns();
      enter(entry_->provide(bundle));
    }
    const std::size_t left = pump_->unwritten();
    if (left != std::exchange(unwritten, left)) moved_at_ns_ = monotonic_ns();
    if (std::chrono::nanoseconds(monotonic_ns() - moved_at_ns_) >= kEntryTimeout) co_return false;
    const std::optional<LinkStep> moved = entry_->sending(left);
    if (moved) co_await report_progress(*moved);
    // A client that uses a master connection waits for ever if the master was stopped.
    const bool is_silent = !has_received_ && error_text_.empty() && !target_.control_path.empty();
    if (is_silent && std::chrono::nanoseconds(monotonic_ns() - moved_at_ns_) >= timeout) {
      timeout = std::chrono::nanoseconds::max();
      co_await report_progress(
          LinkStep("ssh client: no response, perhaps because its ControlMaster at " +
                       target_.control_path + " hangs",
                   "stop that ssh (ps, kill), or bypass it: --ssh-args '-o ControlPath=none'"));
    }
  }
  co_return true;
}

// Waits until the output has ended, then a moment for the client's exit code and last messages.
Awaitable<void> SshClientLink::await_end() {
  const auto set_wake = [this](const Arrival<bool>& arrive) { wake_ = arrive; };
  if (!output_ended_) co_await sequence_.wait<bool>(set_wake);
  const auto exit = [this](const Arrival<bool>& arrive) {
    client_->on_end([arrive](const ExitStatus&) { arrive(true); });
  };
  if (!client_->ended()) co_await sequence_.wait_at_most<bool>(kErrorOutputTimeout, exit);
  // One more turn of the loop reads what the client wrote before it exited.
  co_await sequence_.turn();
}

Result<void> SshClientLink::start_client(NodeUpload& upload) {
  entry_.emplace(request_, host_.name);
  up_.remote_command = ssh().command_for(upload, host_);
  ChildRequest request;
  request.arguments = ssh_client_command(context_->options(), host_, target_, ssh().config_path(),
                                         up_.remote_command);
  // The user's own program may need all of the user's variables.
  if (!is_ssh_program(request.arguments.front()))
    request.environment = environment_texts(environment_of(environ));
  start_pumps(IVY_TRY(start_piped(context_->loop(), request)));
  moved_at_ns_ = monotonic_ns();
  return {};
}

void SshClientLink::start_pumps(PipedChild client) {
  client_ = client.process;
  pump_ = std::make_shared<DescriptorPump>(context_->loop(), *this, client.output.release(),
                                           client.input.release());
  pump_->start_reading();
  error_pump_ =
      std::make_shared<DescriptorPump>(context_->loop(), *this, client.errors.release(), -1);
  error_pump_->start_reading();
}

void SshClientLink::pump_bytes(DescriptorPump& pump, std::string_view bytes) {
  if (&pump == error_pump_.get()) return append_tail(error_text_, bytes);
  take(bytes);
}

void SshClientLink::pump_ended(DescriptorPump& pump, const std::string&) {
  if (&pump == error_pump_.get()) return;
  output_ended_ = true;
  wake_(true);
}

void SshClientLink::take(std::string_view bytes) {
  if (entry_->is_past()) {
    has_received_relay_ = true;
    return reports_.bytes(bytes);
  }
  moved_at_ns_ = monotonic_ns();
  has_received_ = true;
  enter(entry_->feed(bytes));
}

void SshClientLink::enter(const RemoteEntry::Step& step) {
  if (step.progress) reports_.progress(*step.progress);
  if (!step.send.empty()) pump_->write(step.send);
  if (!entry_->needed_bundle().empty()) wake_(true);
  if (step.up) {
    slot_.reset();
    wake_(true);
    reports_.up(up_);
  }
  has_received_relay_ = has_received_relay_ || !step.bytes.empty() || step.failed;
  if (!step.bytes.empty()) reports_.bytes(step.bytes);
  if (step.failed) fail(*step.failed);
}

LinkDown SshClientLink::end_reason() {
  const bool was_up = entry_->is_up();
  if (was_up) ssh().mark_damaged(host_, !has_received_relay_);
  const std::string reason = error_line_of(error_text_);
  const std::string noise = last_line(entry_->noise());
  LinkFailure failure = was_up ? LinkFailure::kBroken : classify_client_failure(error_text_);
  if (!was_up && failure == LinkFailure::kBroken) failure = LinkFailure::kBootstrap;
  LinkDown down = client_failure(
      failure, was_up ? "the ssh client's connection closed" : "the ssh client could not connect");
  if (!reason.empty() || !noise.empty()) down.message += ": " + (reason.empty() ? noise : reason);
  // ssh exits with 255 for all reasons of its own, so only another code is worth printing.
  const auto& status = client_->ended();
  if (status && !status->success() && (reason.empty() || status->code != 255)) {
    down.message += " (" + describe(*status) + ")";
  }
  if (was_up) down.fix.clear();
  if (!was_up && !agent_error_.empty()) {
    down.message += " (" + agent_error_ + ")";
    down.fix = silent_agent_fix();
    // Not final, because the agent may answer when the owner dials again.
    if (request_.reattach || request_.again) down.failure = LinkFailure::kUnreachable;
  }
  return down;
}

LinkDown SshClientLink::client_failure(LinkFailure failure, const std::string& message) const {
  return LinkDown{failure, message, client_fix(error_text_, test_command())};
}

std::string SshClientLink::test_command() const {
  const std::uint16_t port = host_.port != 0 ? host_.port : context_->options().ssh_port;
  return ssh_true(host_, port, ssh().config_path(), PromptChoice::kNeverPrompt,
                  target_.client_options);
}

void SshClientLink::write(std::string bytes) {
  drained_due_ = true;
  pump_->write(bytes);
}

void SshClientLink::release() {
  sequence_.stop();
  slot_.reset();
  if (pump_) pump_->stop();
  if (error_pump_) error_pump_->stop();
  if (client_) client_->end_within(context_->loop());
}

}  // namespace ivy
