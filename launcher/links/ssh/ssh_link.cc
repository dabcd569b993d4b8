#include "launcher/links/ssh/ssh_link.h"

#include <utility>

#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_client_link.h"
#include "launcher/links/tcp_dial.h"
#include "proto/contract/log.h"

namespace ivy {
namespace {

// Time from the TCP connection to the running command: sshd's own LoginGraceTime is 120 s, but
// users do not wait that long.
constexpr std::chrono::seconds kHandshakeTimeout{30};
// sshd turns connections away above MaxStartups: a few spread retries get in.
constexpr int kMaxTries = 5;
constexpr int kMaxRefusedTries = 3;
constexpr std::chrono::milliseconds kFirstBackoff{150};

}  // namespace

SshLink::SshLink(std::shared_ptr<CarrierContext> context, Host host, Handlers handlers, int attempt)
    : SequencedLink(context->loop(), std::move(handlers)),
      context_(std::move(context)),
      host_(std::move(host)),
      attempt_(attempt),
      wire_(sequence_) {}

SshLink::~SshLink() { close(); }

void SshLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(run());
}

Awaitable<void> SshLink::run() {
  const Result<NodeUpload*> upload = ssh().upload();
  if (!upload.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, upload.error()));
  place_ = co_await context_->handshakes().acquire(sequence_);
  target_ = co_await ssh().target_of(sequence_, host_);
  if (!target_.client_because.empty()) {
    log::debug(host_.name + ": the OpenSSH client is used because of " + target_.client_because);
    co_return start_client(reports_.handlers());
  }
  up_.carrier = Carrier::kSsh;
  up_.remote_command = (*upload)->remote_command();
  for (int tries = 1;; ++tries) {
    const End end = co_await try_once(**upload);
    if (!end.client_because.empty()) co_return try_client(end.client_because);
    if (attempt_ > 0 || tries >= end.worth_tries) co_return fail(end.down);
    disconnect();
    const std::chrono::duration<double, std::milli> pause =
        kFirstBackoff * (1 << (tries - 1)) * context_->jitter();
    co_await tell("ssh: " + end.down.message + ", trying again");
    co_await sequence_.sleep(std::chrono::duration_cast<std::chrono::milliseconds>(pause));
  }
}

Awaitable<SshLink::End> SshLink::try_once(NodeUpload& upload) {
  if (!place_) place_ = co_await context_->handshakes().acquire(sequence_);
  co_await tell("ssh: connecting");
  if (const MaybeEnd end = co_await dial()) co_return *end;
  wire_.set_limit(kHandshakeTimeout);
  SshSession& session = wire_.session();
  const auto shake_hands = [&] { return session.handshake(); };
  if (const MaybeEnd end = co_await take(shake_hands, &SshLink::handshake_failure)) co_return *end;
  if (const MaybeEnd end = co_await check_host_key()) co_return *end;
  co_await tell("ssh: logging in");
  const auto log_in = [&] { return session.log_in(ssh().keys()); };
  if (const MaybeEnd end = co_await take(log_in, &SshLink::login_failure)) co_return *end;
  const auto open_channel = [&] { return session.open_channel(); };
  if (const MaybeEnd end = co_await take(open_channel, &SshLink::command_failure)) co_return *end;
  const auto execute = [&] { return session.execute(upload.remote_command()); };
  if (const MaybeEnd end = co_await take(execute, &SshLink::command_failure)) co_return *end;
  co_return co_await carry(upload);
}

Awaitable<SshLink::MaybeEnd> SshLink::dial() {
  const DialLimits limits;
  Dialled dialled =
      co_await dial_tcp(sequence_, context_->resolvers(), target_.host_name, target_.port, limits);
  if (dialled.failed) {
    // A host that boots is refused, or has no route yet; silence has had its own long time-out.
    const bool is_quick = dialled.failed->failure == LinkFailure::kRefused ||
                          dialled.failed->message.find("No route to host") != std::string::npos;
    co_return End{*dialled.failed, is_quick ? kMaxRefusedTries : 1, ""};
  }
  up_.peer_address = dialled.peer_address;
  up_.local_address = dialled.local_address;
  const Result<void> opened = wire_.open(target_, std::move(dialled.socket));
  if (opened.ok()) co_return std::nullopt;
  if (opened.error().code == Code::kInternal) co_return End{{}, 1, opened.error().message};
  co_return End{LinkDown::from(LinkFailure::kBootstrap, opened.error()), 1, ""};
}

template <class Step>
Awaitable<SshLink::MaybeEnd> SshLink::take(Step step, End (SshLink::*why_failed)()) {
  const SshStep result = co_await wire_.repeat(step);
  if (result == SshStep::kDone) co_return std::nullopt;
  co_return result == SshStep::kFailed ? (this->*why_failed)() : silence();
}

Awaitable<SshLink::MaybeEnd> SshLink::check_host_key() {
  const SshHostKey key = wire_.session().host_key();
  if (key.verdict == SshHostKey::Verdict::kKnown) co_return std::nullopt;
  const bool may_ask =
      key.verdict == SshHostKey::Verdict::kUnknown && target_.may_ask && HostKeyQuestion::can_ask();
  if (!may_ask) co_return host_key_end(key);
  const bool is_trusted = co_await is_trusted_by_user(key);
  if (!is_trusted) co_return host_key_end(key);
  if (const Result<void> kept = wire_.session().remember_host_key(); !kept)
    co_await tell("cannot remember the host key: " + kept.error().message);
  wire_.set_limit(kHandshakeTimeout);
  co_return std::nullopt;
}

// Takes the time that the person takes.
Awaitable<bool> SshLink::is_trusted_by_user(SshHostKey key) {
  co_await tell("asking about its host key");
  const Slots::Ticket terminal = co_await context_->terminal().acquire(sequence_);
  question_ = std::make_shared<HostKeyQuestion>(context_->loop());
  const HostKeyQuestion::Subject subject{host_.name, up_.peer_address, key.type, key.fingerprint};
  const auto ask = [&](const Arrival<bool>& arrive) { question_->ask(subject, arrive); };
  co_return co_await sequence_.wait<bool>(ask);
}

Awaitable<SshLink::End> SshLink::carry(NodeUpload& upload) {
  relay_.emplace(sequence_, wire_, reports_, RemoteEntry(upload, request_, host_.name), [this] {
    place_.reset();
    reports_.up(up_);
  });
  co_await tell("ssh: starting ivy-node");
  const std::optional<LinkDown> named = co_await relay_->carry();
  if (named) co_return End{*named, 1, ""};
  co_return connection_end();
}

SshLink::End SshLink::handshake_failure() {
  if (wire_.session().saw_banner()) return End{{}, 1, wire_.session().error()};
  LinkDown down;
  down.failure = LinkFailure::kRefused;
  down.message = where() + " closed the connection before sending an SSH banner";
  down.fix = "is it an SSH server, and does it allow this host (hosts.deny, a firewall)? try: " +
             ssh_command() +
             "\nif that works: raise MaxStartups in its sshd_config, or use a smaller --fanout";
  return End{down, kMaxTries, ""};
}

SshLink::End SshLink::login_failure() {
  const SshSession& session = wire_.session();
  if (session.error().find("Too many authentication failures") != std::string::npos)
    return End{{}, 1, "the server took no more keys"};
  if (session.is_closed()) return End{{}, 1, "the server hung up: " + session.error()};
  const std::string methods = session.accepted_methods();
  return End{{}, 1, "no key was accepted" + (methods.empty() ? "" : " (" + methods + ")")};
}

SshLink::End SshLink::command_failure() {
  const std::string error = wire_.session().error();
  return End{LinkDown{LinkFailure::kBootstrap, where() + " did not start our command: " + error,
                      ssh_command()},
             1, ""};
}

SshLink::End SshLink::silence() {
  return End{LinkDown{LinkFailure::kUnreachable,
                      where() + " answers, but its sshd says nothing more", ssh_command()},
             1, ""};
}

SshLink::End SshLink::host_key_end(const SshHostKey& key) {
  const std::string& config = ssh().config_path();
  return End{host_key_failure(host_, target_, key, config), 1, ""};
}

SshLink::End SshLink::connection_end() {
  const bool was_up = relay_->is_up();
  std::string why = relay_->last_words();
  if (why.empty()) why = last_line(wire_.session().error());
  LinkDown down;
  down.failure = was_up ? LinkFailure::kBroken : LinkFailure::kBootstrap;
  down.message = was_up ? "the ssh connection to " + where() + " ended"
                        : where() + " logged us in, but did not run ivy-node";
  if (!why.empty()) down.message += ": " + why;
  if (const int status = wire_.session().exit_status(); status > 0) {
    down.message += " (exit status " + std::to_string(status) + ")";
  }
  if (!was_up) down.fix = ssh_command();
  return End{down, 1, ""};
}

void SshLink::try_client(const std::string& because) {
  reports_.progress("libssh could not log in to " + host_.name + " (" + because +
                    "), trying the OpenSSH client");
  Handlers handlers = reports_.handlers();
  handlers.up = [this](const LinkUp& up) {
    ssh().prefer_client(host_);
    reports_.up(up);
  };
  handlers.down = [this, because](const LinkDown& down) {
    LinkDown both = down;
    // A second "no key was accepted" helps nobody.
    const bool is_news =
        down.failure != LinkFailure::kBroken && down.failure != LinkFailure::kAuthentication;
    if (is_news) both.message += " (libssh: " + because + ")";
    reports_.down(both);
  };
  start_client(std::move(handlers));
}

void SshLink::start_client(Handlers handlers) {
  release();
  if (!reports_.is_open()) return;
  client_ = std::make_unique<SshClientLink>(context_, host_, target_, std::move(handlers));
  client_->open(request_);
}

void SshLink::write(std::string bytes) {
  if (client_) return client_->write(std::move(bytes));
  relay_->write(bytes);
}

void SshLink::disconnect() {
  wire_.close();
  place_.reset();
}

void SshLink::release() {
  sequence_.stop();
  if (question_) question_->cancel();
  disconnect();
  if (client_) client_->close();
}

std::string SshLink::where() const {
  const std::string address = up_.peer_address.empty() || up_.peer_address == target_.host_name
                                  ? ""
                                  : " (" + up_.peer_address + ")";
  return target_.host_name + address + " port " + std::to_string(target_.port);
}

std::string SshLink::ssh_command() const {
  return ssh_true(host_, host_.port, ssh().config_path(), AskChoice::kMayAsk,
                  target_.client_options);
}

}  // namespace ivy
