// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_relay.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "launcher/links/remote_greeting.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// Limit of an upload or a start without progress.
constexpr std::chrono::seconds kUploadTimeout{60};
// How long to wait for the exit status and the last messages after the end of the output.
constexpr std::chrono::milliseconds kRelayErrorTimeout{300};
// After this time, the login shell is probably running something other than ivyrun's command.
constexpr std::int64_t kGreetingTimeoutNs = 5'000'000'000;

}  // namespace

void SshRelay::write(std::string_view bytes) {
  {
    const std::lock_guard lock(write_mutex_);
    outgoing_.append(bytes);
  }
  drained_due_ = true;
  wire_.wake();
}

Awaitable<std::optional<LinkDown>> SshRelay::carry() {
  wire_.set_limit(kUploadTimeout);
  bool in_time = true;
  std::int64_t slow_at_ns = monotonic_ns() + kGreetingTimeoutNs;
  while (in_time && move_bytes()) {
    if (!has_greeted_ && monotonic_ns() > slow_at_ns) {
      slow_at_ns = std::numeric_limits<std::int64_t>::max();
      reports_.progress(
          {"ssh: logged in, but the login shell there has not started ivyrun's command yet",
           "a start-up file of that account (.bashrc, .zshenv, config.fish) must not start another "
           "program: ssh " +
               entry_.host() + " 'echo started' must print it"});
      co_await sequence_.checkpoint();
    }
    if (!entry_.needed_architecture().empty()) {
      co_await provide_bundle();
      continue;
    }
    const bool is_awaited = !is_up() || unwritten() > 0;
    if (has_more_to_read_) {
      co_await sequence_.turn();
    } else {
      in_time = co_await wire_.ready(is_awaited ? SshWire::WaitMode::kPollSoon
                                                : SshWire::WaitMode::kWhenReady);
    }
  }
  co_await sequence_.checkpoint();
  if (failure_ || !in_time) co_return failure_;
  wire_.set_limit(kRelayErrorTimeout);
  do {
    while (read_stream(SshStream::kError)) {
    }
    if (wire_.session().is_finished()) break;
    in_time = co_await wire_.ready(SshWire::WaitMode::kWhenReady);
  } while (in_time);
  co_return std::nullopt;
}

Awaitable<void> SshRelay::provide_bundle() {
  const Result<NodeBundle> bundle =
      co_await context_.bundle(sequence_, entry_.needed_architecture());
  wire_.set_limit(kUploadTimeout);
  enter(entry_.provide(bundle));
}

// Moves everything that can be moved now. Returns false at the end of the connection.
//
// Each call of libssh may take data of any stream from the socket, and data that it has taken does
// not make the socket readable again. This function therefore returns only after it has found the
// output empty and, right after that, no write was possible.
bool SshRelay::move_bytes() {
  int reads = 0;
  do {
    bool last_poll = false;
    while (!last_poll && !is_over_ && reads < kReadsPerTurn) {
      while (reads < kReadsPerTurn && read_stream(SshStream::kOutput)) ++reads;
      const bool had_errors = read_stream(SshStream::kError);
      const bool had_output = read_stream(SshStream::kOutput);
      if (had_output) ++reads;
      last_poll = !had_errors && !had_output;
    }
  } while (write_some());
  has_more_to_read_ = reads >= kReadsPerTurn;
  return !is_over_ && reports_.is_open();
}

// Reads from one stream. Returns true if there were bytes, so that there may be more.
bool SshRelay::read_stream(SshStream stream) {
  if (!reports_.is_open() || failure_) return false;
  const SshRead result = wire_.session().read(buffer_->data(), buffer_->size(), stream);
  if (result.state == SshRead::State::kNothing) return false;
  if (result.state != SshRead::State::kBytes) {
    if (stream == SshStream::kOutput) is_over_ = true;
    return false;
  }
  const std::string_view bytes(buffer_->data(), result.count);
  if (stream == SshStream::kError) {
    append_tail(error_text_, bytes);
  } else if (entry_.is_handed_over()) {
    has_received_relay_ = true;
    reports_.bytes(bytes);
  } else {
    enter(entry_.feed(bytes));
  }
  return reports_.is_open();
}

void SshRelay::enter(const RemoteEntry::Actions& actions) {
  if (actions.progress) reports_.progress(*actions.progress);
  {
    const std::lock_guard lock(write_mutex_);
    outgoing_ += actions.send;
  }
  has_greeted_ = has_greeted_ || !actions.send.empty() || !entry_.needed_architecture().empty() ||
                 actions.failed;
  has_received_relay_ =
      has_received_relay_ || !actions.bytes.empty() || (actions.failed && is_up());
  if (actions.is_up) {
    wire_.lift_limit();
    owner_.relay_up();
  } else if (!is_up()) {
    wire_.set_limit(kUploadTimeout);
  }
  if (!actions.bytes.empty()) reports_.bytes(actions.bytes);
  failure_ = actions.failed;
  is_over_ = is_over_ || failure_;
}

long SshRelay::write_piece() {
  if (is_closed_ || written_ == outgoing_.size()) return 0;
  SshSession& session = wire_.session();
  if (session.wants_write()) return 0;
  const std::size_t window = std::min(session.write_window(), kWriteBytes);
  if (window == 0) return 0;
  const long count = session.write(std::string_view(outgoing_).substr(written_, window));
  if (count > 0) written_ += static_cast<std::size_t>(count);
  if (written_ < outgoing_.size()) return count;
  outgoing_.clear();
  written_ = 0;
  return count;
}

// Returns whether anything was written.
bool SshRelay::write_some() {
  if (!reports_.is_open() || is_over_) return false;
  bool wrote = false;
  for (;;) {
    long count = 0;
    {
      const std::lock_guard lock(write_mutex_);
      count = write_piece();
    }
    is_over_ = is_over_ || count < 0;
    if (count < 0) return false;
    if (count == 0) break;
    wrote = true;
    if (is_up()) continue;
    wire_.set_limit(kUploadTimeout);
    if (const auto moved = entry_.sending(unwritten())) reports_.progress(*moved);
    if (!reports_.is_open()) return false;
  }
  if (unwritten() > 0 || wire_.session().wants_write()) return wrote;
  if (std::exchange(drained_due_, false)) reports_.drained();
  return wrote;
}

void SshRelay::write_alive(std::string_view frame) {
  const std::lock_guard lock(write_mutex_);
  if (is_closed_) return;
  wire_.session().flush();
  // Frames must not mix: the rest of a frame that the loop has begun is written first.
  while (write_piece() > 0) {
  }
  if (!outgoing_.empty()) return;
  outgoing_ = frame;
  write_piece();  // If only a part leaves, the loop writes the rest before its next bytes.
  wire_.session().flush();
}

void SshRelay::close() {
  const std::lock_guard lock(write_mutex_);
  is_closed_ = true;
}

std::size_t SshRelay::unwritten() {
  const std::lock_guard lock(write_mutex_);
  return outgoing_.size() - written_;
}

std::string SshRelay::last_remote_line() const {
  const std::string error = last_line(error_text_);
  return error.empty() ? last_line(entry_.noise()) : error;
}

}  // namespace ivy
