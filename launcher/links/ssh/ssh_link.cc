// SPDX-License-Identifier: Apache-2.0
// run() repeats try_once(), which calls the steps in the order of ssh_link.h: dial(),
// read_banner(), do_handshake(), check_host_key(), log_in(), then carry() with SshRelay. A step
// that fails returns an End, which says whether to try again and whether the OpenSSH client may do
// better. The functions *_failure(), silence() and throttled_failure() make these Ends.
#include "launcher/links/ssh/ssh_link.h"

#include <unistd.h>

#include <utility>

#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_agent.h"
#include "launcher/links/ssh/ssh_client_link.h"
#include "launcher/links/tcp_dial.h"
#include "proto/contract/log.h"

namespace ivy {
namespace {

// Limit from the TCP connection to the running command. sshd's own LoginGraceTime is 120 s, but
// users do not wait that long.
constexpr std::chrono::seconds kHandshakeTimeout{30};
// sshd closes connections above MaxStartups; a few retries, spread in time, get in.
constexpr int kMaxTries = 5;
constexpr int kMaxRefusedTries = 3;  // Tries if the address refuses connections or has no route.
constexpr std::chrono::milliseconds kFirstBackoff{150};
// sshd 9.8 and later blocks an address for at least 15 s after failures.
constexpr std::chrono::seconds kThrottledPause{16};
// How long an agent is not used after it listed its keys but did not sign.
constexpr std::chrono::seconds kSilentAgentTime{10};
// Pause before another login without that agent.
constexpr std::chrono::seconds kSilentAgentPause{1};
// Period of report_stuck(); shorter than any lease.
constexpr std::chrono::milliseconds kStuckReport{500};

}  // namespace

SshLink::SshLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner,
                 int attempt)
    : SequencedLink(context->loop(), owner),
      context_(std::move(context)),
      host_(std::move(host)),
      attempt_(attempt),
      wire_(sequence_, *context_, host_.name),
      stuck_timer_(context_->loop()) {}

SshLink::~SshLink() { close(); }

void SshLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(run());
}

Awaitable<void> SshLink::run() {
  co_await report_progress(ssh_step("ssh: reading its configuration"));
  const Result<void> account = co_await ssh().read_account(sequence_, host_.name);
  if (!account.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, account.error()));
  const Result<std::shared_ptr<NodeUpload>> upload = co_await context_->node_upload(sequence_);
  if (!upload.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, upload.error()));
  slot_ = co_await context_->handshakes().acquire(sequence_);
  target_ = co_await ssh().target_of(sequence_, host_);
  if (target_.user.empty() && ssh().user().name.empty()) co_return fail(nameless_user());
  if (!target_.client_because.empty()) {
    log::debug(host_.name + ": the OpenSSH client is used because of " + target_.client_because);
    co_return start_client();
  }
  up_.transport = Transport::kSsh;
  up_.remote_command = context_->command_for(**upload, host_);
  for (int tries = 1;; ++tries) {
    const End end = co_await try_once();
    if (!end.client_because.empty()) co_return try_client(end.client_because);
    if (attempt_ > 0 || tries >= end.max_tries) co_return fail(end.down);
    disconnect();
    const std::chrono::duration<double, std::milli> backoff =
        kFirstBackoff * (1 << (tries - 1)) * context_->jitter();
    const auto pause = end.pause + std::chrono::duration_cast<std::chrono::milliseconds>(backoff);
    const std::string when =
        end.pause.count() > 0 ? " in " + std::to_string(end.pause.count()) + " s" : "";
    co_await report_progress(ssh_step("ssh: " + end.down.message + ", trying again" + when));
    co_await sequence_.sleep(pause);
  }
}

Awaitable<SshLink::End> SshLink::try_once() {
  if (!slot_) slot_ = co_await context_->handshakes().acquire(sequence_);
  co_await report_progress(ssh_step("ssh: connecting"));
  if (const MaybeEnd end = co_await dial()) co_return *end;
  wire_.set_limit(kHandshakeTimeout);
  if (const MaybeEnd end = co_await read_banner()) co_return *end;
  if (const MaybeEnd end = co_await do_handshake()) co_return *end;
  if (const MaybeEnd end = co_await check_host_key()) co_return *end;
  if (const MaybeEnd end = co_await log_in()) co_return *end;
  const auto open_channel = [](SshSession& session) { return session.open_channel(); };
  if (const MaybeEnd end = co_await take("sshd", open_channel, &SshLink::command_failure))
    co_return *end;
  const auto execute = [command = up_.remote_command](SshSession& session) {
    return session.execute(command);
  };
  if (const MaybeEnd end = co_await take("sshd", execute, &SshLink::command_failure))
    co_return *end;
  co_return co_await carry();
}

Awaitable<SshLink::MaybeEnd> SshLink::dial() {
  const DialLimits limits;
  Dialled dialled =
      co_await dial_tcp(sequence_, context_->resolvers(), target_.host_name, target_.port, limits);
  if (dialled.failed) {
    // A host that boots refuses connections or has no route yet, so that is tried again. A silent
    // host has already used a long timeout.
    const bool is_quick = dialled.failed->failure == LinkFailure::kRefused || dialled.has_no_route;
    co_return End{*dialled.failed, is_quick ? kMaxRefusedTries : 1, ""};
  }
  up_.peer_address = dialled.peer_address;
  up_.local_address = dialled.local_address;
  const Result<void> opened = wire_.open(target_, std::move(dialled.socket));
  if (opened.ok()) co_return std::nullopt;
  if (opened.error().code == Code::kInternal) co_return End{{}, 1, opened.error().message};
  co_return End{LinkDown::from(LinkFailure::kBootstrap, opened.error()), 1, ""};
}

// Before its banner, sshd may send a line that says why it rejects this address.
Awaitable<SshLink::MaybeEnd> SshLink::read_banner() {
  const bool in_time = co_await wire_.ready(SshWire::WaitMode::kWhenReady);
  if (!in_time) co_return silence();
  const std::string begin = wire_.peek();
  pre_banner_line_ = begin.starts_with("SSH-") ? "" : begin.substr(0, begin.find_first_of("\r\n"));
  if (pre_banner_line_ == "Not allowed at this time") co_return throttled_failure();
  co_return std::nullopt;
}

Awaitable<SshLink::MaybeEnd> SshLink::do_handshake() {
  // libssh reads known_hosts to choose the algorithms that it offers.
  const auto step = [](SshSession& session) { return session.handshake(); };
  co_return co_await take(target_.known_hosts, step, &SshLink::handshake_failure);
}

template <class Step>
Awaitable<SshLink::MaybeEnd> SshLink::take(std::string name, Step step,
                                           End (SshLink::*why_failed)()) {
  const Result<SshStep> result = co_await wire_.repeat(std::move(name), step);
  if (!result.ok()) {
    const std::string message = result.error().message;
    co_return End{LinkDown{LinkFailure::kUnreachable, message, ssh_command()}, 1, ""};
  }
  if (*result == SshStep::kDone) co_return std::nullopt;
  co_return *result == SshStep::kFailed ? (this->*why_failed)() : silence();
}

// Compares the host key with known_hosts, or on a redial with the key of the first login, which is
// kept in memory so that no file is read.
Awaitable<SshLink::MaybeEnd> SshLink::check_host_key() {
  const auto compare = [](SshSession& session) -> Result<SshHostKey> { return session.host_key(); };
  const Result<SshHostKey> presented = co_await wire_.call(target_.known_hosts, compare);
  if (!presented.ok())
    co_return End{LinkDown::from(LinkFailure::kUnreachable, presented.error()), 1, ""};
  const SshHostKey key = *presented;
  if (key.verdict != SshHostKey::Verdict::kKnown) {
    const bool may_prompt = key.verdict == SshHostKey::Verdict::kUnknown && target_.may_prompt &&
                            HostKeyQuestion::can_prompt();
    if (!may_prompt) co_return host_key_end(key);
    const bool is_trusted = co_await is_trusted_by_user(key);
    if (!is_trusted) co_return host_key_end(key);
    // The answer may have taken longer than the limit.
    wire_.set_limit(kHandshakeTimeout);
    const auto remember = [](SshSession& session) { return session.remember_host_key(); };
    const Result<void> kept = co_await wire_.call(target_.known_hosts, remember);
    if (!wire_.is_open())
      co_return End{LinkDown::from(LinkFailure::kUnreachable, kept.error()), 1, ""};
    if (!kept.ok())
      co_await report_progress(ssh_step("cannot remember the host key: " + kept.error().message));
  }
  login_.fingerprint = key.fingerprint;
  login_.algorithms = key.algorithms;
  co_return std::nullopt;
}

// Logs in. sshd closes the connection after a few keys (MaxAuthTries), and an agent may have more,
// so the keys that the configuration names are tried first.
Awaitable<SshLink::MaybeEnd> SshLink::log_in() {
  const auto try_identities = [keys = ssh().keys()](SshSession& session) {
    return session.try_identities(*keys);
  };
  MaybeEnd end = login_failure();
  if (!target_.pubkey) co_return end;
  const std::string what =
      target_.identities.empty() ? "key files" : "the key file " + target_.identities.front();
  const bool files_first = target_.names_identities || target_.first_login.by_file;
  for (int turn = 0; turn < 2; ++turn) {
    login_.by_file = (turn == 0) == files_first;
    if (login_.by_file) {
      co_await report_progress(ssh_step("ssh: logging in"));
      // The server reads the account's authorized_keys there. With an agent's keys it may instead
      // be the agent that hangs.
      expect("its SSH server or the file system of the home directory there");
      end = co_await take(what, try_identities, &SshLink::login_failure);
      stuck_timer_.cancel();
    } else {
      end = co_await try_agent();
    }
    if (!end) ssh().remember_login(host_, login_);
    // Other keys are worth a try only if these were rejected. An agent that does not sign takes the
    // session with it, so only the client can try them.
    if (!end || end->client_because.empty() || !wire_.is_open()) co_return end;
  }
  if (agent_error_.empty()) co_return end;
  if (attempt_ > 0) {
    // The agent may answer later, and some servers become stricter with each failed login.
    wire_.close();
    co_await report_progress(LinkStep("ssh: " + agent_error_, silent_agent_fix()));
    co_await sequence_.sleep(kSilentAgentPause);
  }
  co_return agent_failure();
}

Awaitable<SshLink::MaybeEnd> SshLink::try_agent() {
  const std::string path = ssh_agent_path(target_);
  if (path.empty()) co_return login_failure();
  const std::string name = "the SSH agent at " + path;
  co_await report_progress(LinkStep("ssh: waiting for " + name, silent_agent_fix()));
  Result<Descriptor> agent = co_await ssh().agent(sequence_, host_.name, target_, attempt_ > 0);
  if (!agent.ok()) {
    if (agent.error().code == Code::kDeadlineExceeded) agent_error_ = agent.error().message;
    co_return login_failure();
  }
  wire_.session().set_agent(std::move(*agent));
  // The agent may ask its user for a touch or a passphrase.
  wire_.set_limit(kHandshakeTimeout);
  const auto step = [](SshSession& session) { return session.try_agent(); };
  const Result<SshStep> result = co_await wire_.repeat(name, step);
  if (!result.ok()) {
    // The session is lost with the step that hangs in it; the next login does not use the agent.
    ssh().note_silent_agent(path, result.error().message, kSilentAgentTime);
    agent_error_ = result.error().message;
    co_return agent_failure();
  }
  if (*result == SshStep::kDone) co_return std::nullopt;
  co_return *result == SshStep::kFailed ? login_failure() : silence();
}

// Asks the user, who may take any time.
Awaitable<bool> SshLink::is_trusted_by_user(SshHostKey key) {
  co_await report_progress(ssh_step("asking about its host key"));
  const Slots::Ticket terminal = co_await context_->terminal().acquire(sequence_);
  question_ = std::make_shared<HostKeyQuestion>(context_->loop());
  const HostKeyQuestion::Subject subject{host_.name, up_.peer_address, key.type, key.fingerprint};
  const auto prompt = [&](const Arrival<bool>& arrive) { question_->prompt(subject, arrive); };
  co_return co_await sequence_.wait<bool>(prompt);
}

Awaitable<SshLink::End> SshLink::carry() {
  SshRelayEvents& owner = *this;
  relay_.emplace(sequence_, *context_, wire_, reports_, RemoteEntry(request_, host_.name), owner);
  co_await report_progress(ssh_step("ssh: starting ivy-node"));
  expect("its login shell or the file system of ~/.cache/ivyrun there");
  const std::optional<LinkDown> named = co_await relay_->carry();
  if (named) co_return End{*named, 1, ""};
  co_return connection_end();
}

void SshLink::relay_up() {
  slot_.reset();
  stuck_timer_.cancel();
  reports_.up(up_);
}

SshLink::End SshLink::handshake_failure() {
  if (wire_.session().saw_banner()) return End{{}, 1, wire_.session().error()};
  LinkDown down;
  down.failure = LinkFailure::kRefused;
  down.message = where() + " closed the connection before sending an SSH banner";
  if (!pre_banner_line_.empty()) down.message += "; it said: " + pre_banner_line_;
  down.fix = "is it an SSH server, and does it allow this host (hosts.deny, a firewall)? try: " +
             ssh_command() +
             "\nif that works: raise MaxStartups in its sshd_config, or use a smaller --fanout";
  return End{down, kMaxTries, ""};
}

SshLink::End SshLink::login_failure() {
  const SshSession& session = wire_.session();
  if (session.error().find("Too many authentication failures") != std::string::npos)
    return End{{}, 1, "the server accepted no more authentication attempts"};
  if (session.is_closed())
    return End{{}, 1, "the server closed the connection: " + session.error()};
  const std::string methods = session.accepted_methods();
  return End{{}, 1, "no key was accepted" + (methods.empty() ? "" : " (" + methods + ")")};
}

// The client may log in by other means, but must not wait for the same agent. A redial is repeated
// by its owner.
SshLink::End SshLink::agent_failure() {
  if (attempt_ > 0) {
    return End{LinkDown{LinkFailure::kUnreachable, agent_error_, silent_agent_fix()}, 1, ""};
  }
  target_.client_options.emplace_back("IdentityAgent=none");
  return End{{}, 1, agent_error_};
}

SshLink::End SshLink::throttled_failure() {
  LinkDown down;
  down.failure = LinkFailure::kRefused;
  down.message =
      where() +
      " rejected the connection: Not allowed at this time (its sshd blocks this address for a "
      "while after failed logins: PerSourcePenalties)";
  down.fix =
      "wait a minute, and stop whatever fails to log in there; or add this address to "
      "PerSourcePenaltyExemptList in its sshd_config";
  return End{down, kMaxRefusedTries, "", kThrottledPause};
}

SshLink::End SshLink::command_failure() {
  const std::string error = wire_.session().error();
  return End{LinkDown{LinkFailure::kBootstrap,
                      where() + " did not start ivyrun's command: " + error, ssh_command()},
             1, ""};
}

SshLink::End SshLink::silence() {
  return End{
      LinkDown{LinkFailure::kUnreachable,
               where() + " accepts connections, but its sshd no longer responds", ssh_command()},
      1, ""};
}

SshLink::End SshLink::host_key_end(const SshHostKey& key) {
  const std::string& config = ssh().config_path();
  return End{host_key_failure(host_, target_, key, config), 1, ""};
}

// The shell's start-up files run before ivyrun's command, and may start another program instead of
// it.
SshLink::End SshLink::shell_silence() {
  const std::string tail = relay_->last_remote_line();
  LinkDown down;
  down.failure = LinkFailure::kBootstrap;
  down.message =
      where() +
      " accepted the login, but its login shell did not start ivyrun's command within 60 s" +
      (tail.empty() ? "" : "; it said: " + tail);
  down.fix =
      "a start-up file of that account (.bashrc, .zshenv, .cshrc, config.fish) must not start "
      "another program, nor wait, in a shell without a terminal; this must print 'started': " +
      ssh_run(host_, host_.port, ssh().config_path(), target_.client_options,
              "echo started < /dev/null");
  return End{down, 1, ""};
}

SshLink::End SshLink::connection_end() {
  const bool was_up = relay_->is_up();
  if (!was_up && !relay_->has_greeted() && wire_.session().exit_status() < 0 &&
      !wire_.session().is_finished())
    return shell_silence();
  if (was_up) context_->mark_damaged(host_, !relay_->has_received_relay());
  std::string why = relay_->last_remote_line();
  if (why.empty()) why = last_line(wire_.session().error());
  LinkDown down;
  down.failure = was_up ? LinkFailure::kBroken : LinkFailure::kBootstrap;
  down.message = was_up ? "the ssh connection to " + where() + " closed"
                        : where() + " accepted the login, but did not run ivy-node";
  if (was_up && !relay_->has_received_relay()) {
    down.message = "ivy-node on " + where() + " exited without any output";
    down.fix = "if this persists, remove ~/.cache/ivyrun there";
  }
  if (!why.empty()) down.message += ": " + why;
  if (const int status = wire_.session().exit_status(); status > 0) {
    down.message += " (exit status " + std::to_string(status) + ")";
  }
  if (!was_up) down.fix = ssh_command();
  return End{down, 1, ""};
}

void SshLink::try_client(const std::string& because) {
  reports_.progress(ssh_step("libssh could not log in to " + host_.name + " (" + because +
                             "), trying the OpenSSH client"));
  libssh_failure_ = because;
  start_client();
}

void SshLink::start_client() {
  release();
  if (!reports_.is_open()) return;
  HostLinkEvents& owner = *this;
  client_ = std::make_unique<SshClientLink>(context_, host_, target_, owner);
  client_->open(request_);
}

void SshLink::link_up(HostLink&, const LinkUp& up) {
  if (!libssh_failure_.empty()) ssh().prefer_client(host_);
  reports_.up(up);
}

void SshLink::link_down(HostLink&, const LinkDown& down) {
  if (libssh_failure_.empty()) return reports_.down(down);
  LinkDown both = down;
  // Repeating "no key was accepted" would not help the user.
  const bool adds_information =
      down.failure != LinkFailure::kBroken &&
      (down.failure != LinkFailure::kAuthentication || !agent_error_.empty());
  if (adds_information) both.message += " (libssh: " + libssh_failure_ + ")";
  if (!agent_error_.empty()) both.fix = silent_agent_fix();
  reports_.down(both);
}

void SshLink::write(std::string bytes) {
  if (client_) return client_->write(std::move(bytes));
  relay_->write(bytes);
}

void SshLink::send_alive(std::string_view frame) {
  if (client_) return client_->send_alive(frame);
  relay_->write_alive(frame);
}

void SshLink::expect(std::string what) {
  expected_ = std::move(what);
  report_stuck();
}

void SshLink::report_stuck() {
  stuck_timer_.expires_after(kStuckReport);
  stuck_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !reports_.is_open()) return;
    report_stuck();
    reports_.stuck(expected_);
  });
}

void SshLink::disconnect() {
  stuck_timer_.cancel();
  if (relay_) relay_->close();
  wire_.close();
  slot_.reset();
}

void SshLink::release() {
  sequence_.stop();
  if (question_) question_->cancel();
  disconnect();
  if (client_) client_->close();
}

// A container may run this process under a uid without an account.
LinkDown SshLink::nameless_user() const {
  return LinkDown{LinkFailure::kAuthentication,
                  "uid " + std::to_string(getuid()) +
                      " has no name on this machine, so the account on " + host_.name +
                      " is not known",
                  "write USER@" + host_.name + ", or User in ~/.ssh/config"};
}

std::string SshLink::where() const {
  const std::string address = up_.peer_address.empty() || up_.peer_address == target_.host_name
                                  ? ""
                                  : " (" + up_.peer_address + ")";
  return target_.host_name + address + " port " + std::to_string(target_.port);
}

LinkStep SshLink::ssh_step(RemoteText text) const {
  return {
      std::move(text),
      "try: " + ssh_true(host_, host_.port, ssh().config_path(), PromptChoice::kNeverPrompt, {}) +
          ", or allow more time: --start-timeout"};
}

std::string SshLink::ssh_command() const {
  return ssh_true(host_, host_.port, ssh().config_path(), PromptChoice::kMayPrompt,
                  target_.client_options);
}

}  // namespace ivy
