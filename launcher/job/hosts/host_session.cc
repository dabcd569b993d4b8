// SPDX-License-Identifier: Apache-2.0
// HostLinks calls the active_link_* and dial_* functions, and the owner calls the rest. Received
// bytes go from active_link_bytes() to on_frame(); pump() writes what the session has to send.
// tick() runs twice a second: it sends a heartbeat, and ends a session whose lease has expired. A
// broken link leads to active_link_broken() and dial(), a failed redial to redial_failed(). Every
// session ends in fail() or lose(), or through expect_end().
//
// A link that breaks during a restart is redialled as usual: commands are queued and sent again
// (proto/wire/session.h), and the conditions of Restarts::run() do not look at links. If the lease
// expires, HostLosses::lost() ends the job or leaves the host out.
#include "launcher/job/hosts/host_session.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "launcher/options/transport_kind.h"
#include "proto/contract/build.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Pause between two attempts to reach a host again; the first attempt follows immediately.
constexpr milliseconds kRedialPause{500};
// How long a host whose address refuses connections is kept: its sshd or agent may be restarting.
constexpr milliseconds kRefusedTimeout{60'000};
// Number of links that may break before the supervisor has answered. After that, another attempt
// will not work either.
constexpr int kMaxEarlyLosses = 3;
// Bytes given to a link at a time: enough to fill a socket, few enough that a command does not wait
// behind much output.
constexpr std::size_t kWriteBytes = 256u << 10;

// True if this failure is final for a host whose supervisor has never answered. Failures that the
// network or a restarting agent may have caused are retried, within --start-timeout.
bool ends_the_start(const LinkDown& down) {
  return down.failure != LinkFailure::kBroken && down.failure != LinkFailure::kRefused &&
         down.failure != LinkFailure::kUnreachable;
}

}  // namespace

HostSession::HostSession(boost::asio::io_context& loop, HostSessionOptions options,
                         HostSessionEvents& events)
    : loop_(loop),
      options_(std::move(options)),
      events_(events),
      session_(options_.window_bytes),
      links_(loop, options_.make_link, *this),
      tick_timer_(loop),
      redial_timer_(loop) {}

void HostSession::open() { dial(); }

// Before the supervisor has answered, it may not exist: a request without `reattach` finds or
// starts it.
void HostSession::dial() {
  if (state_ == State::kOver || links_.is_dialing()) return;
  const bool reattach = was_attached_ || options_.takeover != 0;
  links_.dial(OpenRequest{options_.job_id, options_.host, reattach, was_up_});
}

void HostSession::active_link_up(const LinkUp& up) {
  paused_ = false;
  const bool first = !std::exchange(was_up_, true);
  attach_sent_ns_ = monotonic_ns();
  session_.link_up();
  session_.send_handshake(session::FrameType::kAttach,
                          session::encode_attach({options_.job_id, options_.token,
                                                  std::string(build_name()), options_.takeover}));
  // The first link has nothing to replay, so the supervisor's position need not be known.
  if (first) IVY_ASSERT(session_.attached(0).ok());
  // If on_ended_ is set, only the last frame has waited for this link.
  state_ = on_ended_ ? State::kEnding : State::kUp;
  if (first) {
    // A link that is up proves that the host runs. Only bytes from it prove that the supervisor
    // does.
    silence_.begin(options_.lease.value_or(default_lease(up.transport, options_.is_attended)),
                   attach_sent_ns_);
    events_.host_up(options_.host, up);
    schedule_tick();
  }
  pump();
}

void HostSession::active_link_bytes(std::string_view bytes) {
  silence_.received(monotonic_ns());
  const std::weak_ptr<void> alive = alive_;
  const HostLink* const active = links_.active();
  std::string_view rest = bytes;
  for (;;) {
    Result<std::vector<session::Frame>> frames = session_.receive(rest);
    if (!frames.ok()) {
      links_.drop();
      return active_link_broken(LinkDown{LinkFailure::kBroken, frames.error().message, ""});
    }
    if (frames->empty()) break;
    rest = {};
    for (const session::Frame& frame : *frames) {
      on_frame(frame);
      if (alive.expired() || active != links_.active()) return;
    }
  }
  events_.host_input_window(options_.host);
  if (!alive.expired()) pump();
}

void HostSession::on_frame(const session::Frame& frame) {
  clock_.received(frame.header.sent_at_ns, monotonic_ns());
  switch (frame.header.type) {
    case session::FrameType::kAttached:
      on_attached(frame);
      break;
    case session::FrameType::kEvent: {
      Event event;
      if (event.ParseFromString(frame.payload)) events_.host_event(options_.host, event);
      break;
    }
    case session::FrameType::kOutput: {
      const Result<session::OutputChunk> chunk = session::decode_output(frame.payload);
      if (!chunk.ok()) break;
      // Credit for the chunk's header is returned now, and for its bytes when they have been
      // written.
      session_.grant(session::kOutputHeaderBytes);
      events_.host_output(options_.host, *chunk);
      break;
    }
    case session::FrameType::kHeartbeat: {
      const Result<std::int64_t> delay_ns = session::decode_delay(frame.payload);
      if (delay_ns.ok()) clock_.peer_delay(*delay_ns, monotonic_ns());
      break;
    }
    case session::FrameType::kAlive: {
      const Result<session::Alive> alive = session::decode_alive(frame.payload);
      if (alive.ok()) events_.host_alive(options_.host, *alive);
      break;
    }
    default:
      break;
  }
}

void HostSession::on_attached(const session::Frame& frame) {
  if (!frame.payload.empty()) {
    const std::string text = "rejected by the supervisor: " + frame.payload;
    if (was_attached_) {
      lose(HostLoss::kSupervisor, text);
    } else {
      fail(LinkDown{LinkFailure::kBootstrap, text, ""});
    }
    return;
  }
  was_attached_ = true;
  last_failure_ = {};
  clock_.answered(monotonic_ns() - attach_sent_ns_);
  const Result<void> resumed = session_.attached(frame.header.acknowledged);
  if (!resumed.ok()) return lose(HostLoss::kSupervisor, resumed.error().message);
  links_.allow_alive(!pausing_ && state_ == State::kUp);
  if (std::exchange(was_stuck_, false)) events_.host_alive(options_.host, {});
  // The new link has cancelled an earlier pause.
  if (pausing_ && !paused_) queue_pause();
}

HostAbsence HostSession::absence() {
  const std::int64_t now = monotonic_ns();
  silence_.tick(now);
  HostAbsence absence{now - silence_.last_received_ns(), last_failure_, silence_.lease()};
  if (options_.on_this_host) absence.limit = milliseconds(0);
  if (state_ != State::kRedialing) return absence;
  absence.ns = std::max(absence.ns, now - link_lost_ns_);
  if (is_refused_) absence.limit = kRefusedTimeout;
  return absence;
}

RelatedTime HostSession::relate(std::uint64_t host_ns) {
  return clock_.relate(host_ns, monotonic_ns());
}

std::int64_t HostSession::host_time(std::int64_t at_ns) const {
  return clock_.host_time(at_ns, monotonic_ns());
}

void HostSession::pump() {
  if ((state_ != State::kUp && state_ != State::kEnding) || !links_.can_write() || paused_ ||
      !session_.has_bytes())
    return;
  std::string bytes = session_.take_bytes(static_cast<std::uint64_t>(monotonic_ns()),
                                          pausing_ ? SIZE_MAX : kWriteBytes);
  if (bytes.empty()) return;
  // On a new link, the first bytes are only the handshake until the supervisor has answered.
  paused_ = pausing_ && session_.is_attached();
  links_.write(std::move(bytes));
}

void HostSession::send(const Command& command) {
  if (state_ == State::kOver) return;
  const Result<void> sent =
      session_.send(session::FrameType::kCommand, command.SerializeAsString());
  if (!sent.ok()) return lose(HostLoss::kHost, sent.error().message);
  pump();
}

void HostSession::pause() {
  if (!is_open() || pausing_) return;
  pausing_ = true;
  links_.allow_alive(false);
  if (state_ != State::kUp) return;
  queue_pause();
  pump();
}

void HostSession::queue_pause() {
  Command command;
  command.mutable_pause();
  pausing_ = session_.send(session::FrameType::kCommand, command.SerializeAsString()).ok();
}

bool HostSession::has_paused() const {
  return !pausing_ || !is_open() || (paused_ && links_.has_written());
}

void HostSession::resume() {
  pausing_ = false;
  paused_ = false;
  links_.allow_alive(state_ == State::kUp && session_.is_attached());
  session_.send_heartbeat();
  pump();
}

void HostSession::grant(std::uint64_t bytes) {
  if (state_ == State::kOver) return;
  session_.grant(bytes);
  pump();
}

void HostSession::send_input(std::string bytes) {
  if (state_ == State::kOver) return;
  session_.send_flow(session::FrameType::kInput, std::move(bytes));
  pump();
}

void HostSession::active_link_broken(const LinkDown& down) {
  session_.link_down();
  last_failure_ = down.message;
  if (state_ == State::kEnding) {
    close();
    return on_ended_();
  }
  if (!was_attached_ &&
      (options_.on_this_host || ++early_losses_ >= kMaxEarlyLosses || ends_the_start(down)))
    return fail(down);
  if (options_.on_this_host || down.failure == LinkFailure::kNoSuchJob)
    return lose(HostLoss::kSupervisor, down.message);
  state_ = State::kRedialing;
  link_lost_ns_ = monotonic_ns();
  events_.host_progress(options_.host, "connection lost, reconnecting");
  dial();
}

void HostSession::dial_failed(const LinkDown& down) {
  if (!was_up_) return fail(down);
  redial_failed(down);
}

void HostSession::redial_failed(const LinkDown& down) {
  last_failure_ = down.message;
  is_refused_ = down.failure == LinkFailure::kRefused;
  if (!was_attached_ && ends_the_start(down)) return fail(down);
  const std::int64_t now = monotonic_ns();
  switch (down.failure) {
    case LinkFailure::kNoSuchJob:
      return lose(HostLoss::kSupervisor, down.message);
    case LinkFailure::kHostKey:
    case LinkFailure::kAuthentication:
      // The old link is silent but may recover; without one, the host is unreachable.
      if (state_ == State::kRedialing) return lose(HostLoss::kHost, down.message);
      break;
    case LinkFailure::kRefused:
      if (state_ == State::kRedialing &&
          now - link_lost_ns_ > std::chrono::nanoseconds(kRefusedTimeout).count())
        return lose(HostLoss::kHost, down.message);
      // A refusal proves that the host is up, so it does not count as silence.
      if (state_ == State::kRedialing) silence_.received(now);
      break;
    default:
      break;
  }
  redial_timer_.expires_after(kRedialPause);
  redial_timer_.async_wait([this, alive = std::weak_ptr(alive_)](const auto& error) {
    if (!error && !alive.expired()) dial();
  });
}

// Called while a redial has reached the host and waits there. The host is up, and its workers run
// until their supervisor has had no contact with this launcher for kAbsenceLease.
void HostSession::dial_stuck(const std::string& what) {
  if (state_ != State::kRedialing || !was_attached_) return;
  const std::int64_t now = monotonic_ns();
  const std::int64_t waited = now - link_lost_ns_;
  if (waited <= std::chrono::nanoseconds(kAbsenceLease).count()) silence_.received(now);
  last_failure_ = "it is waiting for " + what;
  was_stuck_ = true;
  events_.host_alive(options_.host, session::Alive{0, static_cast<std::uint64_t>(waited), what});
}

void HostSession::schedule_tick() {
  tick_timer_.expires_after(kLauncherTick);
  tick_timer_.async_wait([this, alive = std::weak_ptr(alive_)](const auto& error) {
    if (!error && !alive.expired()) tick();
  });
}

void HostSession::tick() {
  if (state_ == State::kOver || state_ == State::kEnding) return;
  const std::int64_t now = monotonic_ns();
  silence_.tick(now);
  if (options_.heartbeat != nullptr) options_.heartbeat->turned();
  schedule_tick();
  if (!options_.on_this_host) {
    if (silence_.is_over(now)) {
      const RemoteText why = last_failure_.empty() ? "" : " (" + last_failure_ + ")";
      const std::string silent = tenths_text(now - silence_.last_received_ns());
      return lose(HostLoss::kHost, "no response for " + silent + why);
    }
    if (was_attached_ && state_ == State::kUp && silence_.needs_redial(now, attach_sent_ns_))
      dial();
  }
  if (!pausing_) session_.send_heartbeat();
  pump();
}

void HostSession::fail(const LinkDown& down) {
  close();
  events_.host_failed(options_.host, down);
}

void HostSession::lose(HostLoss loss, const RemoteText& message) {
  if (state_ == State::kOver) return;
  const std::int64_t lease_ns = std::chrono::nanoseconds(lease()).count();
  given_up_ns_ = silence_.last_received_ns() + lease_ns;
  // After a hang-up, which the host may have seen too, it waits for another link.
  if (state_ == State::kRedialing)
    given_up_ns_ = std::max(
        given_up_ns_,
        link_lost_ns_ + std::chrono::nanoseconds(std::max(lease(), kAbsenceLease)).count());
  close();
  // The host's report has arrived already. The host cannot be told to finish, and exits by itself.
  if (on_ended_) return on_ended_();
  events_.host_lost(options_.host, loss, message);
}

void HostSession::expect_end(std::function<void()> on_ended) {
  // Waits for a new link, to send the last frame: without it, the supervisor would wait as long as
  // for a lost launcher.
  if (state_ == State::kRedialing) {
    on_ended_ = std::move(on_ended);
    return;
  }
  if (state_ != State::kUp) {
    close();
    return on_ended();
  }
  state_ = State::kEnding;
  // The host only has to exit. Without ticks, the heartbeat thread would take this loop for stuck.
  links_.allow_alive(false);
  links_.give_up_dialing();
  on_ended_ = std::move(on_ended);
}

void HostSession::close() {
  state_ = State::kOver;
  links_.drop();
  links_.give_up_dialing();
  tick_timer_.cancel();
  redial_timer_.cancel();
}

}  // namespace ivy
