#include "launcher/job/host_session.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "proto/contract/build.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Between two tries to reach a host again; the first try is at once.
constexpr milliseconds kRedialPause{500};
// A host whose address refuses lives: its sshd or agent may be restarting.
constexpr std::int64_t kRefusedPatienceNs = 60'000'000'000;
// A host that has come up so often, and was gone each time before it said a word, has a reason that
// another try does not cure.
constexpr int kMaxEarlyLosses = 3;
// Bytes handed to a link at once: enough to fill a socket, little enough to keep commands in front.
constexpr std::size_t kWriteBytes = 256u << 10;

std::int64_t to_ns(milliseconds duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

std::string seconds_text(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

// True if this failure is final for a host whose supervisor has never answered. What a network or a
// restarting agent may have caused is not: --start-timeout bounds the retries.
bool ends_the_start(const LinkDown& down) {
  return down.failure != LinkFailure::kBroken && down.failure != LinkFailure::kRefused &&
         down.failure != LinkFailure::kUnreachable;
}

}  // namespace

HostSession::HostSession(boost::asio::io_context& loop, HostSessionOptions options,
                         Handlers handlers)
    : loop_(loop),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      session_(options_.host, options_.window_bytes),
      tick_timer_(loop),
      redial_timer_(loop) {}

HostSession::~HostSession() { *alive_ = false; }

void HostSession::open() { dialing_ = dial(); }

// Until its supervisor has answered it is not known whether there is one: `new` finds it or starts
// it.
std::unique_ptr<HostLink> HostSession::dial() {
  const int serial = next_serial_++;
  dialing_serial_ = serial;
  HostLink::Handlers handlers;
  handlers.up = [this, serial](const LinkUp& up) { on_up(serial, up); };
  handlers.bytes = [this, serial](std::string_view bytes) { on_bytes(serial, bytes); };
  handlers.drained = [this, serial] { on_drained(serial); };
  handlers.down = [this, serial](const LinkDown& down) { on_down(serial, down); };
  handlers.progress = [this](const RemoteText& text) { handlers_.progress(text); };
  std::unique_ptr<HostLink> link = options_.make_link(handlers, serial);
  const bool reattach = was_attached_ || options_.takeover != 0;
  link->open(OpenRequest{options_.job_id, options_.host, reattach, was_up_});
  return link;
}

void HostSession::on_up(int serial, const LinkUp& up) {
  if (state_ == State::kOver || state_ == State::kEnding || serial != dialing_serial_) return;
  // The new way is there before the old one is given up: a supervisor must not see an end between.
  retire(std::move(link_));
  link_ = std::move(dialing_);
  link_serial_ = serial;
  dialing_serial_ = -1;
  writing_ = false;
  paused_ = false;
  const bool first = !std::exchange(was_up_, true);
  attach_sent_ns_ = monotonic_ns();
  // A carrier that is up proves a living host, not a living supervisor: only its bytes do.
  if (first) last_heard_ns_ = attach_sent_ns_;
  session_.carrier_up();
  session_.send_handshake(link::FrameType::kAttach,
                          link::encode_attach({options_.job_id, options_.token,
                                               std::string(build_name()), options_.takeover}));
  // Nothing was said before, so nothing has to wait for what the peer already has.
  if (first) IVY_ASSERT(session_.attached(0).ok());
  // What waited for this carrier may be the farewell alone.
  state_ = over_ ? State::kEnding : State::kUp;
  if (first) {
    handlers_.up(up);
    last_ticked_ns_ = attach_sent_ns_;
    schedule_tick();
  }
  pump();
}

void HostSession::on_bytes(int serial, std::string_view bytes) {
  if (state_ == State::kOver || serial != link_serial_) return;
  last_heard_ns_ = monotonic_ns();
  const std::shared_ptr<bool> alive = alive_;
  std::string_view rest = bytes;
  for (;;) {
    Result<std::vector<link::Frame>> frames = session_.receive(rest);
    if (!frames.ok()) {
      carrier_lost(LinkDown{LinkFailure::kBroken, frames.error().message, ""});
      return;
    }
    if (frames->empty()) break;
    rest = {};
    for (const link::Frame& frame : *frames) {
      on_frame(frame);
      if (!*alive || state_ == State::kOver || serial != link_serial_) return;
    }
  }
  handlers_.input_room();
  if (*alive) pump();
}

void HostSession::on_frame(const link::Frame& frame) {
  const std::int64_t delay = monotonic_ns() - static_cast<std::int64_t>(frame.header.sent_at_ns);
  if (!clock_known_ || delay < smallest_delay_ns_) smallest_delay_ns_ = delay;
  clock_known_ = true;
  switch (frame.header.type) {
    case link::FrameType::kAttached:
      on_attached(frame);
      break;
    case link::FrameType::kEvent: {
      Event event;
      if (event.ParseFromString(frame.payload)) handlers_.event(event);
      break;
    }
    case link::FrameType::kOutput: {
      const Result<link::OutputChunk> chunk = link::decode_output(frame.payload);
      if (!chunk.ok()) break;
      // The header of the chunk is spent at once, its bytes when they have been disposed of.
      session_.grant(link::kOutputHeaderBytes);
      handlers_.output(*chunk);
      break;
    }
    default:
      break;
  }
}

void HostSession::on_attached(const link::Frame& frame) {
  if (!frame.payload.empty()) {
    const std::string text = "refused by the supervisor: " + frame.payload;
    if (was_attached_) {
      lose(HostLoss::kSupervisor, text);
    } else {
      fail(LinkDown{LinkFailure::kBootstrap, text, ""});
    }
    return;
  }
  was_attached_ = true;
  round_trip_ns_ = monotonic_ns() - attach_sent_ns_;
  const Result<void> resumed = session_.attached(frame.header.acknowledged);
  if (!resumed.ok()) return lose(HostLoss::kSupervisor, resumed.error().message);
  // The new carrier itself was a word: it took an earlier pause back.
  if (pausing_ && !paused_) queue_pause();
}

void HostSession::on_drained(int serial) {
  if (state_ == State::kOver || serial != link_serial_) return;
  writing_ = false;
  pump();
}

void HostSession::pump() {
  if ((state_ != State::kUp && state_ != State::kEnding) || !link_ || writing_ || paused_ ||
      !session_.has_bytes())
    return;
  std::string bytes = session_.take_bytes(static_cast<std::uint64_t>(monotonic_ns()),
                                          pausing_ ? SIZE_MAX : kWriteBytes);
  if (bytes.empty()) return;
  // Before the supervisor has answered a new carrier, this was the handshake alone.
  paused_ = pausing_ && session_.is_attached();
  writing_ = true;
  link_->write(std::move(bytes));
}

void HostSession::send(const Command& command) {
  if (state_ == State::kOver) return;
  const Result<void> sent = session_.send(link::FrameType::kCommand, command.SerializeAsString());
  if (!sent.ok()) return lose(HostLoss::kHost, sent.error().message);
  pump();
}

void HostSession::pause() {
  if (!is_open() || pausing_) return;
  pausing_ = true;
  if (state_ != State::kUp) return;
  queue_pause();
  pump();
}

void HostSession::queue_pause() {
  Command command;
  command.mutable_pause();
  pausing_ = session_.send(link::FrameType::kCommand, command.SerializeAsString()).ok();
}

bool HostSession::has_paused() const { return !pausing_ || !is_open() || (paused_ && !writing_); }

void HostSession::resume() {
  pausing_ = false;
  paused_ = false;
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
  session_.send_flow(link::FrameType::kInput, std::move(bytes));
  pump();
}

RelatedTime HostSession::relate(std::uint64_t host_ns) const {
  // The smallest delay is the clocks' difference plus at least nothing and at most a round trip.
  return RelatedTime{static_cast<std::int64_t>(host_ns) + smallest_delay_ns_, round_trip_ns_};
}

void HostSession::on_down(int serial, const LinkDown& down) {
  if (state_ == State::kOver) return;
  if (serial == link_serial_) return carrier_lost(down);
  if (serial != dialing_serial_) return;
  dialing_serial_ = -1;
  retire(std::move(dialing_));
  if (!was_up_) return fail(down);
  redial_failed(down);
}

void HostSession::carrier_lost(const LinkDown& down) {
  link_serial_ = -1;
  retire(std::move(link_));
  session_.carrier_down();
  writing_ = false;
  last_failure_ = down.message;
  if (state_ == State::kEnding) {
    close();
    return over_();
  }
  if (!was_attached_ &&
      (options_.on_this_host || ++early_losses_ >= kMaxEarlyLosses || ends_the_start(down)))
    return fail(down);
  if (options_.on_this_host || down.failure == LinkFailure::kNoSuchJob)
    return lose(HostLoss::kSupervisor, down.message);
  state_ = State::kRedialing;
  carrier_lost_ns_ = monotonic_ns();
  handlers_.progress("connection lost, dialling again");
  if (!dialing_) redial();
}

void HostSession::redial() {
  if (state_ == State::kOver || dialing_) return;
  dialing_ = dial();
}

void HostSession::redial_failed(const LinkDown& down) {
  last_failure_ = down.message;
  if (!was_attached_ && ends_the_start(down)) return fail(down);
  const std::int64_t now = monotonic_ns();
  switch (down.failure) {
    case LinkFailure::kNoSuchJob:
      return lose(HostLoss::kSupervisor, down.message);
    case LinkFailure::kHostKey:
    case LinkFailure::kAuthentication:
      // The silent old carrier may still come back; without one the host cannot.
      if (state_ == State::kRedialing) return lose(HostLoss::kHost, down.message);
      break;
    case LinkFailure::kRefused:
      if (state_ == State::kRedialing && now - carrier_lost_ns_ > kRefusedPatienceNs)
        return lose(HostLoss::kHost, down.message);
      // It lives: only silence of a host that does not answer at all runs against the lease.
      if (state_ == State::kRedialing) last_heard_ns_ = now;
      break;
    default:
      break;
  }
  redial_timer_.expires_after(kRedialPause);
  redial_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) redial();
  });
}

void HostSession::schedule_tick() {
  tick_timer_.expires_after(kLauncherTick);
  tick_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) tick();
  });
}

void HostSession::tick() {
  if (state_ == State::kOver || state_ == State::kEnding) return;
  const std::int64_t now = monotonic_ns();
  // Time in which this process itself was stopped does not count as the host's silence.
  if (now - last_ticked_ns_ > 4 * to_ns(kLauncherTick)) last_heard_ns_ += now - last_ticked_ns_;
  last_ticked_ns_ = now;
  schedule_tick();
  if (!options_.on_this_host) {
    const std::int64_t silence = now - last_heard_ns_;
    if (silence > to_ns(options_.lease)) {
      const RemoteText why = last_failure_.empty() ? "" : " (" + last_failure_ + ")";
      return lose(HostLoss::kHost, "nothing was heard for " + seconds_text(silence) + why);
    }
    // Half the lease of silence: try another way while the old one stays open. A way that is new
    // has a quarter of the lease to bring an answer.
    if (was_attached_ && state_ == State::kUp && silence > to_ns(options_.lease) / 2 &&
        now - attach_sent_ns_ > to_ns(options_.lease) / 4)
      redial();
  }
  if (!pausing_) session_.send_heartbeat();
  pump();
}

void HostSession::retire(std::unique_ptr<HostLink> link) {
  if (!link) return;
  link->close();
  // A link must not be destroyed inside one of its own handlers.
  std::shared_ptr<HostLink> shared = std::move(link);
  boost::asio::post(loop_, [shared] {});
}

void HostSession::fail(const LinkDown& down) {
  close();
  handlers_.failed(down);
}

void HostSession::lose(HostLoss loss, const RemoteText& message) {
  if (state_ == State::kOver) return;
  close();
  // Its report was here already: it could not be told that it is over, and ends by itself.
  if (over_) return over_();
  handlers_.lost(loss, message);
}

void HostSession::expect_end(std::function<void()> over) {
  // Without the farewell its supervisor would wait for us as long as for a lost launcher.
  if (state_ == State::kRedialing) {
    over_ = std::move(over);
    return;
  }
  if (state_ != State::kUp || !link_) {
    close();
    return over();
  }
  state_ = State::kEnding;
  dialing_serial_ = -1;
  retire(std::move(dialing_));
  over_ = std::move(over);
}

void HostSession::close() {
  state_ = State::kOver;
  link_serial_ = -1;
  dialing_serial_ = -1;
  retire(std::move(link_));
  retire(std::move(dialing_));
  tick_timer_.cancel();
  redial_timer_.cancel();
}

}  // namespace ivy
