#include "agent/node/supervisor/command_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

#include "proto/contract/build.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr std::size_t kWriteBytes = 256u << 10;
// Writes per turn of the loop, so that exits are seen between them.
constexpr int kWritesPerTurn = 4;

bool is_ours(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// A peer that only ends its direction leaves our direction open; one that closes hangs up.
CarrierLoss loss_of(int fd) {
  pollfd poller{fd, POLLIN | POLLRDHUP, 0};
  if (poll(&poller, 1, 0) < 0) return CarrierLoss::kHungUp;
  return (poller.revents & (POLLHUP | POLLERR)) != 0 ? CarrierLoss::kHungUp
                                                     : CarrierLoss::kHalfClosed;
}

}  // namespace

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

struct CommandChannel::Carrier {
  Carrier(boost::asio::io_context& loop, int fd, CarrierKind carrier_kind)
      : socket(loop, fd), kind(carrier_kind) {}

  boost::asio::posix::stream_descriptor socket;
  CarrierKind kind;
  bool is_first = false;  // The carrier for which this supervisor was started.
  bool is_refused = false;
  std::uint64_t attach_by_ns = 0;
  // For a carrier that has not attached: the bytes so far, and their decoder, which leaves the
  // session alone.
  std::string received;
  link::FrameDecoder decoder;
  // After the Attach: bytes to write. With write_mutex_ held.
  std::string out;
  std::size_t out_written = 0;
  bool has_spoken = false;  // The preamble and the answer to Attach have been put into `out`.
  bool is_waiting_writable = false;
  bool is_write_broken = false;  // The peer takes nothing; what it sent may still be unread.
  bool is_closed = false;
};

CommandChannel::CommandChannel(boost::asio::io_context& loop, const SupervisorStart& start,
                               Lease& lease, Handlers handlers)
    : loop_(loop),
      listener_(loop, start.listening_fd),
      job_id_(start.job_id),
      lease_(lease),
      handlers_(std::move(handlers)),
      session_(kInputWindowBytes),
      buffer_(std::make_unique_for_overwrite<char[]>(kReadBytes)) {
  if (start.carrier_fd >= 0) {
    add_carrier(start.carrier_fd, start.carrier, nanoseconds_of(kFirstAttachTimeout));
    unattached_.back()->is_first = true;
  }
  accept();
}

CommandChannel::~CommandChannel() = default;

void CommandChannel::accept() {
  listener_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (!error) accept_pending();
                       });
}

void CommandChannel::listen_on(int fd) {
  boost::system::error_code ignored;
  listener_.close(ignored);
  listener_.assign(fd);
  accept_paused_ = false;
  accept();
}

void CommandChannel::accept_pending() {
  for (;;) {
    Descriptor fd(
        accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd && errno != EAGAIN) {
      // Out of descriptors, most likely: waiting for "readable" would spin.
      accept_paused_ = true;
      return;
    }
    if (!fd) return accept();
    if (is_ours(fd.get()) && unattached_.size() < kMaxUnattached)
      add_carrier(fd.release(), CarrierKind::kRelay, nanoseconds_of(kAttachTimeout));
  }
}

void CommandChannel::add_carrier(int fd, CarrierKind kind, std::uint64_t attach_timeout_ns) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const auto carrier = std::make_shared<Carrier>(loop_, fd, kind);
  carrier->attach_by_ns = monotonic_ns() + attach_timeout_ns;
  carrier->decoder.limit_payload(link::kMaxAttachBytes);
  unattached_.push_back(carrier);
  wait_readable(carrier);
}

void CommandChannel::wait_readable(const CarrierPointer& carrier) {
  carrier->socket.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                             [this, carrier](const boost::system::error_code& error) {
                               if (!error && !carrier->is_closed) read_some(carrier);
                             });
}

void CommandChannel::read_some(const CarrierPointer& carrier) {
  const ssize_t count = ::read(carrier->socket.native_handle(), buffer_.get(), kReadBytes);
  if (count == 0) return lose(carrier, loss_of(carrier->socket.native_handle()));
  if (count < 0 && errno != EAGAIN && errno != EINTR) return lose(carrier, CarrierLoss::kHungUp);
  if (count > 0) {
    const std::string_view bytes(buffer_.get(), static_cast<std::size_t>(count));
    if (carrier == attached_)
      deliver(carrier, bytes);
    else
      take_unattached(carrier, bytes);
  }
  if (!carrier->is_closed) wait_readable(carrier);
}

void CommandChannel::hang_up() {
  if (attached_) shutdown(attached_->socket.native_handle(), SHUT_RDWR);
}

void CommandChannel::tick(std::uint64_t now_ns) {
  const std::vector<CarrierPointer> unattached = unattached_;
  for (const CarrierPointer& carrier : unattached)
    if (now_ns >= carrier->attach_by_ns) lose(carrier, CarrierLoss::kHungUp);
  if (!std::exchange(accept_paused_, false)) return;
  accept();
}

void CommandChannel::take_unattached(const CarrierPointer& carrier, std::string_view bytes) {
  carrier->received += bytes;
  if (!carrier->decoder.feed(bytes).ok()) return lose(carrier, CarrierLoss::kHungUp);
  const std::optional<link::Frame> frame = carrier->decoder.next();
  if (!frame) {
    constexpr std::size_t kLongestAttach =
        link::kPreamble.size() + link::kHeaderBytes + link::kMaxAttachBytes;
    if (carrier->received.size() > kLongestAttach) lose(carrier, CarrierLoss::kHungUp);
    return;
  }
  if (frame->header.type != link::FrameType::kAttach) return lose(carrier, CarrierLoss::kHungUp);
  const Result<std::uint32_t> takeover = check_attach(*frame);
  if (!takeover.ok()) return refuse(carrier, takeover.error().message);
  attach(carrier, *frame, *takeover);
}

Result<std::uint32_t> CommandChannel::check_attach(const link::Frame& frame) {
  const link::AttachRequest request = IVY_TRY(link::decode_attach(frame.payload));
  if (request.job_id != job_id_) return Error{Code::kNotFound, "this supervisor keeps another job"};
  if (request.build != build_name())
    return Error{Code::kFailedPrecondition, "the launcher is build " + request.build +
                                                ", the supervisor is build " +
                                                std::string(build_name())};
  if (request.token.empty()) return Error{Code::kUnauthenticated, "the token is missing"};
  if (token_.empty()) token_ = request.token;
  if (!equal_secrets(token_, request.token))
    return Error{Code::kUnauthenticated, "the token is not this job's"};
  if (request.takeover < takeover_)
    return Error{Code::kFailedPrecondition, "another launcher has taken this job over"};
  if (request.takeover > takeover_ && !allows_takeover_)
    return Error{Code::kFailedPrecondition, "this job does not outlive its launcher"};
  return request.takeover;
}

void CommandChannel::attach(const CarrierPointer& carrier, const link::Frame& frame,
                            std::uint32_t takeover) {
  // A launcher that redials knows that its old carrier is dead; we may not know it yet.
  if (attached_) close(attached_);
  std::erase(unattached_, carrier);
  {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    attached_ = carrier;
  }
  lease_.carrier_attached(carrier->kind);
  if (takeover != std::exchange(takeover_, takeover)) {
    delays_ = {};  // Another launcher has another clock.
    handlers_.taken_over(session_.take_over());
  }
  session_.carrier_up();
  session_.send_handshake(link::FrameType::kAttached, {});
  const std::string received = std::exchange(carrier->received, {});
  // Only the Attach is taken out; frames behind it wait in the session for attached().
  const Result<std::vector<link::Frame>> again = session_.receive(received);
  if (!again.ok() || !session_.attached(frame.header.acknowledged).ok())
    return lose(carrier, CarrierLoss::kHungUp);
  deliver(carrier, {});
  flush();
}

void CommandChannel::refuse(const CarrierPointer& carrier, const std::string& text) {
  link::FrameHeader header;
  header.length = static_cast<std::uint32_t>(text.size());
  header.type = link::FrameType::kAttached;
  header.sent_at_ns = monotonic_ns();
  const std::string bytes = std::string(link::kPreamble) + link::encode_header(header) + text;
  // A fresh socket takes these few bytes at once; if it does not, the close tells enough.
  [[maybe_unused]] const ssize_t written =
      ::write(carrier->socket.native_handle(), bytes.data(), bytes.size());
  carrier->is_refused = true;
  // This counts as an orderly end: nothing of ours was cut off.
  lose(carrier, CarrierLoss::kHalfClosed);
}

void CommandChannel::deliver(const CarrierPointer& carrier, std::string_view bytes) {
  lease_.heard();
  Result<std::vector<link::Frame>> frames = session_.receive(bytes);
  if (!frames.ok()) return lose(carrier, CarrierLoss::kHungUp);
  const std::int64_t now_ns = monotonic_ns();
  if (session_.last_stamp_ns() != 0)
    delays_.add(now_ns - static_cast<std::int64_t>(session_.last_stamp_ns()), now_ns);
  for (link::Frame& frame : *frames) {
    if (frame.header.type == link::FrameType::kAlive) continue;  // The launcher's loop hangs.
    const bool expected = frame.header.type == link::FrameType::kCommand ||
                          frame.header.type == link::FrameType::kInput;
    if (!expected || !handlers_.frame(frame).ok()) return lose(carrier, CarrierLoss::kHungUp);
    if (carrier->is_closed) return;
  }
  handlers_.received();
  flush();
}

void CommandChannel::lose(const CarrierPointer& carrier, CarrierLoss loss) {
  if (carrier->is_closed) return;
  const bool was_attached = carrier == attached_;
  // The launcher on this host may die before it has attached; no other can stand in for it. The
  // same holds for a remote launcher that was refused. Any other may have reached us in another
  // way.
  const bool is_hopeless = carrier->kind == CarrierKind::kLocal || carrier->is_refused;
  const bool was_awaited = carrier->is_first && is_hopeless && token_.empty();
  if (was_awaited) lease_.carrier_attached(carrier->kind);
  close(carrier);
  if (!was_attached && !was_awaited) return;
  if (was_attached) session_.carrier_down();
  lease_.carrier_lost(loss);
  handlers_.lost();
}

void CommandChannel::close(const CarrierPointer& carrier) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  carrier->is_closed = true;
  boost::system::error_code ignored;
  carrier->socket.close(ignored);
  std::erase(unattached_, carrier);
  if (attached_ == carrier) attached_.reset();
}

void CommandChannel::flush() {
  if (flush_posted_ || !attached_ || attached_->is_waiting_writable) return;
  flush_posted_ = true;
  boost::asio::post(loop_, [this] {
    flush_posted_ = false;
    write_some();
  });
}

bool CommandChannel::flush_now() {
  write_some();
  const std::lock_guard<std::mutex> lock(write_mutex_);
  return attached_ && !attached_->is_write_broken &&
         attached_->out_written == attached_->out.size() && !session_.has_bytes();
}

bool CommandChannel::refill(Carrier& carrier) {
  if (carrier.out_written < carrier.out.size()) return true;
  if (!session_.has_bytes()) return false;
  carrier.out = session_.take_bytes(monotonic_ns(), kWriteBytes);
  carrier.out_written = 0;
  carrier.has_spoken = true;
  return true;
}

ssize_t CommandChannel::write_out(Carrier& carrier) {
  ssize_t count = 0;
  do {
    count = ::write(carrier.socket.native_handle(), carrier.out.data() + carrier.out_written,
                    carrier.out.size() - carrier.out_written);
  } while (count < 0 && errno == EINTR);
  if (count > 0) carrier.out_written += static_cast<std::size_t>(count);
  return count;
}

void CommandChannel::write_some() {
  const CarrierPointer carrier = attached_;
  if (!carrier || carrier->is_waiting_writable) return;
  for (int writes = 0; writes < kWritesPerTurn; ++writes) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    if (carrier->is_write_broken || !refill(*carrier)) return;
    if (write_out(*carrier) >= 0) continue;
    if (errno != EAGAIN) {
      carrier->is_write_broken = true;
      return;
    }
    carrier->is_waiting_writable = true;
    carrier->socket.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                               [this, carrier](const boost::system::error_code& error) {
                                 carrier->is_waiting_writable = false;
                                 if (!error && carrier == attached_) write_some();
                               });
    return;
  }
  flush();
}

void CommandChannel::send_heartbeat() {
  session_.send_heartbeat(delays_.is_empty() ? "" : link::encode_delay(delays_.value_ns()));
  flush();
}

bool CommandChannel::send_alive(const link::Alive& alive) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (!attached_ || !attached_->has_spoken || attached_->is_write_broken) return false;
  Carrier& carrier = *attached_;
  // Frames must not mix: first the rest of what the loop has begun to write, which serves as a
  // heartbeat too.
  if (carrier.out_written < carrier.out.size()) write_out(carrier);
  if (carrier.out_written < carrier.out.size()) return false;
  carrier.out = link::alive_frame(alive, static_cast<std::uint64_t>(monotonic_ns()));
  carrier.out_written = 0;
  write_out(carrier);  // The loop writes the rest before its next frame.
  return true;
}

}  // namespace ivy
