#include "launcher/links/ssh/ssh_connection.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/links/ssh/ssh_advice.h"
#include "launcher/links/ssh/ssh_state.h"

namespace ivy {
namespace asio = boost::asio;

SshConnection::SshConnection(std::shared_ptr<CarrierContext> context, Host host, SshTarget target,
                             Handlers handlers, Retry retry)
    : context_(std::move(context)),
      host_(std::move(host)),
      target_(std::move(target)),
      handlers_(std::move(handlers)),
      retry_(retry),
      socket_(context_->loop()),
      timer_(context_->loop()),
      nudge_timer_(context_->loop()) {}

void SshConnection::open(const OpenRequest& request, NodeUpload& upload) {
  request_ = request;
  upload_ = &upload;
  up_.carrier = Carrier::kSsh;
  up_.remote_command = upload.remote_command();
  want_place();
}

void SshConnection::close() {
  state_ = State::kOver;
  ++deadline_serial_;
  timer_.cancel();
  nudge_timer_.cancel();
  if (dial_) dial_->cancel();
  if (question_) question_->cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
  session_.reset();
  place_.reset();
  terminal_.reset();
}

void SshConnection::want_place() {
  context_->handshakes().acquire(weak_from_this(), [this](Slots::Ticket place) {
    if (state_ == State::kOver) return;
    place_ = std::move(place);
    dial();
  });
}

void SshConnection::dial() {
  handlers_.link.progress("ssh: connecting");
  if (state_ == State::kOver) return;
  dial_ = std::make_shared<TcpDial>(context_->loop(), context_->resolvers(), TcpDial::Limits{});
  TcpDial::Handlers handlers;
  handlers.connected = [this](const Dialled& result) { dialled(result); };
  handlers.failed = [this](const LinkDown& down) { dial_failed(down); };
  dial_->start(target_.host_name, target_.port, std::move(handlers));
}

void SshConnection::dial_failed(const LinkDown& down) {
  // A host that boots is refused, or has no route yet; silence has had its own long time-out.
  const bool is_quick = down.failure == LinkFailure::kRefused ||
                        down.message.find("No route to host") != std::string::npos;
  if (is_quick && try_again(down, kMaxRefusedTries)) return;
  fail(down);
}

bool SshConnection::try_again(const LinkDown& down, int max_tries) {
  ++tries_;
  if (retry_ == Retry::kForbidden || tries_ >= max_tries) return false;
  place_.reset();
  session_.reset();
  boost::system::error_code ignored;
  socket_.close(ignored);
  state_ = State::kWaiting;
  const std::chrono::duration<double, std::milli> wait =
      kFirstBackoff * (1 << (tries_ - 1)) * context_->jitter();
  set_deadline(std::chrono::duration_cast<std::chrono::milliseconds>(wait),
               [this] { want_place(); });
  handlers_.link.progress("ssh: " + down.message + ", trying again");
  return true;
}

void SshConnection::dialled(const Dialled& result) {
  up_.peer_address = result.peer_address;
  up_.local_address = result.local_address;
  auto session = SshSession::make(target_, result.fd);
  if (!session.ok()) return give_up(session.error().message);
  session_ = std::move(session).value();
  // libssh has the descriptor itself; the dial may have taken the last one.
  const int watched = fcntl(result.fd, F_DUPFD_CLOEXEC, 0);
  if (watched < 0) {
    const Error error = errno_error(Code::kResourceExhausted, "watch the connection", errno);
    return fail(LinkDown{LinkFailure::kBootstrap, error.message,
                         "raise the limit of open files (ulimit -n), or use a smaller --fanout"});
  }
  boost::system::error_code refused;
  socket_.assign(watched, refused);
  if (refused) {
    ::close(watched);
    return fail(
        LinkDown{LinkFailure::kBootstrap, "watch the connection: " + refused.message(), ""});
  }
  state_ = State::kHandshake;
  set_deadline(kHandshakeTimeout, [this] {
    fail(LinkDown{LinkFailure::kUnreachable, where() + " answers, but its sshd says nothing more",
                  ssh_true(host_, host_.port, SshState::of(*context_).config().override_path,
                           AskChoice::kMayAsk)});
  });
  drive();
}

void SshConnection::drive() {
  while (state_ != State::kOver && step()) {
  }
  wait();
}

// One step; true when the next can be tried at once.
bool SshConnection::step() {
  switch (state_) {
    case State::kHandshake:
      switch (session_->handshake()) {
        case SshStep::kAgain:
          return false;
        case SshStep::kFailed:
          step_failed();
          return false;
        case SshStep::kDone:
          check_host_key();
          return true;
      }
      return false;
    case State::kLogIn:
      return advance(session_->log_in(SshState::of(*context_).keys()), State::kChannel);
    case State::kChannel:
      return advance(session_->open_channel(), State::kExecute);
    case State::kExecute:
      return advance(session_->execute(upload_->remote_command()), State::kEntry);
    case State::kEntry:
    case State::kUp:
      return move_bytes();
    case State::kEnding:
      last_words();
      return false;
    case State::kWaiting:
    case State::kAsking:
    case State::kOver:
      return false;
  }
  return false;
}

bool SshConnection::advance(SshStep result, State next) {
  if (result == SshStep::kAgain) return false;
  if (result == SshStep::kFailed) {
    step_failed();
    return false;
  }
  state_ = next;
  if (next == State::kEntry) {
    entry_.emplace(*upload_, request_, host_.name);
    handlers_.link.progress("ssh: starting ivy-node");
  }
  return true;
}

void SshConnection::step_failed() {
  const std::string error = session_->error();
  if (state_ == State::kHandshake && !session_->saw_banner()) {
    LinkDown down;
    down.failure = LinkFailure::kRefused;
    down.message = where() + " closed the connection before sending an SSH banner";
    down.fix =
        "is it an SSH server, and does it allow this host (hosts.deny, a firewall)? "
        "try: " +
        ssh_true(host_, host_.port, SshState::of(*context_).config().override_path,
                 AskChoice::kMayAsk) +
        "\nif that works: raise MaxStartups in its sshd_config, or use a smaller --fanout";
    if (!try_again(down, kMaxTries)) fail(down);
    return;
  }
  if (state_ == State::kLogIn) {
    const std::string methods = session_->accepted_methods();
    return give_up("no key was accepted" + (methods.empty() ? "" : " (" + methods + ")"));
  }
  if (state_ == State::kHandshake) return give_up(error);
  fail(LinkDown{LinkFailure::kBootstrap, where() + " did not start our command: " + error,
                ssh_true(host_, host_.port, SshState::of(*context_).config().override_path,
                         AskChoice::kMayAsk)});
}

void SshConnection::check_host_key() {
  const SshHostKey key = session_->host_key();
  if (key.verdict == SshHostKey::Verdict::kKnown) {
    state_ = State::kLogIn;
    handlers_.link.progress("ssh: logging in");
    return;
  }
  if (key.verdict == SshHostKey::Verdict::kUnknown && target_.may_ask &&
      HostKeyQuestion::can_ask()) {
    return ask(key);
  }
  fail(host_key_failure(host_, target_, key, SshState::of(*context_).config().override_path));
}

void SshConnection::ask(const SshHostKey& key) {
  state_ = State::kAsking;
  set_deadline(std::chrono::hours(24), [] {});  // A person takes the time it takes.
  handlers_.link.progress("asking about its host key");
  context_->terminal().acquire(weak_from_this(), [this, key](Slots::Ticket terminal) {
    if (state_ != State::kAsking) return;
    terminal_ = std::move(terminal);
    question_ = std::make_shared<HostKeyQuestion>(context_->loop());
    const HostKeyQuestion::Subject subject{host_.name, up_.peer_address, key.type, key.fingerprint};
    question_->ask(subject, [this, key](bool trusted) { answered(key, trusted); });
  });
}

void SshConnection::answered(const SshHostKey& key, bool trusted) {
  terminal_.reset();
  if (!trusted) {
    return fail(
        host_key_failure(host_, target_, key, SshState::of(*context_).config().override_path));
  }
  if (const Result<void> kept = session_->remember_host_key(); !kept) {
    handlers_.link.progress("cannot remember the host key: " + kept.error().message);
  }
  state_ = State::kLogIn;
  set_deadline(kHandshakeTimeout, [this] {
    fail(LinkDown{LinkFailure::kUnreachable, where() + " stopped answering", {}});
  });
  drive();
}

// libssh takes whatever has arrived from the socket, for any stream, whenever it is called, and
// data that it has taken wakes no handler. So this ends only where the output was looked at last
// and had nothing, and where a write was not possible right after that.
bool SshConnection::move_bytes() {
  int reads = 0;
  bool looked_last = false;
  while (!looked_last && state_ != State::kOver && reads < kReadsPerTurn) {
    while (reads < kReadsPerTurn && read_stream(SshStream::kOutput)) ++reads;
    const bool had_errors = read_stream(SshStream::kError);
    const bool had_output = read_stream(SshStream::kOutput);
    if (had_output) ++reads;
    looked_last = !had_errors && !had_output;
  }
  if (state_ != State::kEntry && state_ != State::kUp) return state_ == State::kEnding;
  if (write_some()) return state_ != State::kOver;
  if (reads >= kReadsPerTurn && state_ != State::kOver) {
    asio::post(context_->loop(), [self = shared_from_this()] { self->drive(); });
  }
  return false;
}

// True when there were bytes and may be more.
bool SshConnection::read_stream(SshStream stream) {
  if (state_ == State::kOver) return false;
  if (!buffer_) buffer_ = std::make_unique<std::array<char, kReadBytes>>();
  const SshRead result = session_->read(buffer_->data(), buffer_->size(), stream);
  if (result.state == SshRead::State::kNothing) return false;
  if (result.state != SshRead::State::kBytes) {
    if (stream == SshStream::kOutput) begin_end();
    return false;
  }
  const std::string_view bytes(buffer_->data(), result.count);
  if (stream == SshStream::kOutput) {
    take(bytes);
  } else {
    error_text_.append(bytes);
    if (error_text_.size() > kErrorKeptBytes) {
      error_text_.erase(0, error_text_.size() - kErrorKeptBytes);
    }
  }
  return state_ != State::kOver;
}

void SshConnection::take(std::string_view bytes) {
  if (!entry_->is_past()) return enter(bytes);
  handlers_.link.bytes(bytes);
}

void SshConnection::enter(std::string_view bytes) {
  const RemoteEntry::Step step = entry_->feed(bytes);
  if (!step.progress.empty()) handlers_.link.progress(step.progress);
  if (state_ == State::kOver) return;
  outgoing_ += step.send;
  if (step.up) {
    state_ = State::kUp;
    place_.reset();
    ++deadline_serial_;
    timer_.cancel();
    // What is written from inside follows the opening line in the same packet.
    handlers_.link.up(up_);
  } else if (state_ == State::kEntry) {
    set_deadline(kEntryTimeout, [this] { ended(); });
  }
  if (state_ != State::kOver && !step.bytes.empty()) handlers_.link.bytes(step.bytes);
  if (state_ != State::kOver && step.failed) fail(*step.failed);
}

void SshConnection::write(std::string_view bytes) {
  outgoing_.append(bytes);
  owes_drained_ = true;
  asio::post(context_->loop(), [self = shared_from_this()] { self->drive(); });
}

// True when something was written.
bool SshConnection::write_some() {
  bool wrote = false;
  while (written_ < outgoing_.size() && !session_->wants_write()) {
    const std::size_t room = std::min(session_->write_window(), kWriteBytes);
    if (room == 0) return wrote;
    const long count = session_->write(std::string_view(outgoing_).substr(written_, room));
    if (count < 0) {
      ended();
      return false;
    }
    if (count == 0) return wrote;
    wrote = true;
    written_ += static_cast<std::size_t>(count);
    if (state_ == State::kEntry) {
      set_deadline(kEntryTimeout, [this] { ended(); });
      const std::string moved = entry_->sending(outgoing_.size() - written_);
      if (!moved.empty()) handlers_.link.progress(moved);
      if (state_ == State::kOver) return false;
    }
  }
  if (written_ < outgoing_.size() || session_->wants_write()) return wrote;
  outgoing_.clear();
  written_ = 0;
  if (std::exchange(owes_drained_, false)) handlers_.link.drained();
  return wrote;
}

void SshConnection::begin_end() {
  state_ = State::kEnding;
  set_deadline(kLastWordsTimeout, [this] { ended(); });
}

void SshConnection::last_words() {
  while (read_stream(SshStream::kError)) {
  }
  if (session_->is_finished()) ended();
}

void SshConnection::ended() {
  const bool was_up = entry_->is_up();
  std::string why = last_line(error_text_);
  if (why.empty() && entry_) why = last_line(entry_->noise());
  if (why.empty()) why = last_line(session_->error());
  LinkDown down;
  down.failure = was_up ? LinkFailure::kBroken : LinkFailure::kBootstrap;
  down.message = was_up ? "the ssh connection to " + where() + " ended"
                        : where() + " logged us in, but did not run ivy-node";
  if (!why.empty()) down.message += ": " + why;
  if (const int status = session_->exit_status(); status > 0) {
    down.message += " (exit status " + std::to_string(status) + ")";
  }
  if (!was_up) {
    down.fix = ssh_true(host_, host_.port, SshState::of(*context_).config().override_path,
                        AskChoice::kMayAsk);
  }
  fail(down);
}

void SshConnection::wait() {
  if (state_ == State::kOver || state_ == State::kAsking || state_ == State::kWaiting) return;
  if (!waits_read_) {
    waits_read_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->waits_read_ = false;
                         if (!error) self->drive();
                       });
  }
  await_nudge();
  if (!waits_write_ && session_->wants_write()) {
    waits_write_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->waits_write_ = false;
                         if (!error) self->drive();
                       });
  }
}

// Data that libssh has taken from the socket while it did something else wakes no handler. Where
// the far end waits for us, we look again without being woken; once the session is up its heartbeat
// does the same.
void SshConnection::await_nudge() {
  if (waits_nudge_ || (state_ != State::kEntry && written_ == outgoing_.size())) return;
  waits_nudge_ = true;
  nudge_timer_.expires_after(kNudge);
  nudge_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    self->waits_nudge_ = false;
    if (!error) self->drive();
  });
}

void SshConnection::set_deadline(std::chrono::steady_clock::duration limit,
                                 std::function<void()> expired) {
  timer_.expires_after(limit);
  timer_.async_wait([self = shared_from_this(), serial = ++deadline_serial_,
                     expired = std::move(expired)](const boost::system::error_code& error) {
    if (!error && serial == self->deadline_serial_ && self->state_ != State::kOver) expired();
  });
}

void SshConnection::fail(const LinkDown& down) {
  if (state_ == State::kOver) return;
  const auto report = handlers_.link.down;
  close();
  report(down);
}

void SshConnection::give_up(const std::string& because) {
  if (state_ == State::kOver) return;
  const auto report = handlers_.give_up;
  close();
  report(because);
}

std::string SshConnection::where() const {
  const std::string address = up_.peer_address.empty() || up_.peer_address == target_.host_name
                                  ? ""
                                  : " (" + up_.peer_address + ")";
  return target_.host_name + address + " port " + std::to_string(target_.port);
}

}  // namespace ivy
