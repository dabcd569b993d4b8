// SPDX-License-Identifier: Apache-2.0
// The path of a transport: accept_pending() and add_transport() take the connection,
// take_unattached() and check_attach() read its first frame, attach() makes it the session's
// transport in place of an older one, deliver() passes its frames to the supervisor, and lose()
// handles its end. write_some() and flush() send, in turns.
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
// Writes per turn of the loop, so that exits are handled between them.
constexpr int kWritesPerTurn = 4;

bool is_peer_of_this_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// Distinguishes a peer that only shut down its sending side from one that closed the socket.
TransportLoss loss_of(int fd) {
  pollfd poller{fd, POLLIN | POLLRDHUP, 0};
  if (poll(&poller, 1, 0) < 0) return TransportLoss::kHungUp;
  return (poller.revents & (POLLHUP | POLLERR)) != 0 ? TransportLoss::kHungUp
                                                     : TransportLoss::kHalfClosed;
}

}  // namespace

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

struct CommandChannel::Transport {
  Transport(boost::asio::io_context& loop, int fd, TransportKind transport_kind)
      : socket(loop, fd), kind(transport_kind) {}

  boost::asio::posix::stream_descriptor socket;
  TransportKind kind;
  bool is_first = false;  // The transport for which this supervisor was started.
  bool is_rejected = false;
  std::uint64_t attach_by_ns = 0;
  // For a transport that has not attached: the bytes so far, and a separate decoder, which keeps
  // them out of the session.
  std::string received;
  session::FrameDecoder decoder;
  // Bytes to write after the Attach. Use it with write_mutex_ held.
  std::string out;
  std::size_t out_written = 0;
  bool has_answered = false;  // The preamble and the answer to Attach were put into `out`.
  bool is_waiting_writable = false;
  bool is_write_broken = false;  // Writing failed; bytes of the peer may still be unread.
  bool is_closed = false;
};

CommandChannel::CommandChannel(boost::asio::io_context& loop, const SupervisorStart& start,
                               Lease& lease, CommandChannelEvents& owner)
    : loop_(loop),
      listener_(loop, start.listening_fd),
      job_id_(start.job_id),
      lease_(lease),
      owner_(owner),
      session_(kInputWindowBytes),
      buffer_(std::make_unique_for_overwrite<char[]>(kReadBytes)) {
  if (start.transport_fd >= 0) {
    add_transport(start.transport_fd, start.transport, nanoseconds_of(kFirstAttachTimeout));
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
    if (is_peer_of_this_user(fd.get()) && unattached_.size() < kMaxUnattached)
      add_transport(fd.release(), TransportKind::kRelay, nanoseconds_of(kAttachTimeout));
  }
}

void CommandChannel::add_transport(int fd, TransportKind kind, std::uint64_t attach_timeout_ns) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const auto transport = std::make_shared<Transport>(loop_, fd, kind);
  transport->attach_by_ns = monotonic_ns() + attach_timeout_ns;
  transport->decoder.limit_payload(session::kMaxAttachBytes);
  unattached_.push_back(transport);
  wait_readable(transport);
}

void CommandChannel::wait_readable(const TransportPointer& transport) {
  transport->socket.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [this, transport](const boost::system::error_code& error) {
                                 if (!error && !transport->is_closed) read_some(transport);
                               });
}

void CommandChannel::read_some(const TransportPointer& transport) {
  const ssize_t count = ::read(transport->socket.native_handle(), buffer_.get(), kReadBytes);
  if (count == 0) return lose(transport, loss_of(transport->socket.native_handle()));
  if (count < 0 && errno != EAGAIN && errno != EINTR)
    return lose(transport, TransportLoss::kHungUp);
  if (count > 0) {
    const std::string_view bytes(buffer_.get(), static_cast<std::size_t>(count));
    if (transport == attached_)
      deliver(transport, bytes);
    else
      take_unattached(transport, bytes);
  }
  if (!transport->is_closed) wait_readable(transport);
}

void CommandChannel::hang_up() {
  if (attached_) shutdown(attached_->socket.native_handle(), SHUT_RDWR);
}

void CommandChannel::tick(std::uint64_t now_ns) {
  const std::vector<TransportPointer> unattached = unattached_;
  for (const TransportPointer& transport : unattached)
    if (now_ns >= transport->attach_by_ns) lose(transport, TransportLoss::kHungUp);
  if (!std::exchange(accept_paused_, false)) return;
  accept();
}

void CommandChannel::take_unattached(const TransportPointer& transport, std::string_view bytes) {
  transport->received += bytes;
  if (!transport->decoder.feed(bytes).ok()) return lose(transport, TransportLoss::kHungUp);
  const std::optional<session::Frame> frame = transport->decoder.next();
  if (!frame) {
    constexpr std::size_t kLongestAttach =
        session::kPreamble.size() + session::kHeaderBytes + session::kMaxAttachBytes;
    if (transport->received.size() > kLongestAttach) lose(transport, TransportLoss::kHungUp);
    return;
  }
  if (frame->header.type != session::FrameType::kAttach)
    return lose(transport, TransportLoss::kHungUp);
  const Result<std::uint32_t> takeover = check_attach(*frame);
  if (!takeover.ok()) return reject(transport, takeover.error().message);
  attach(transport, *frame, *takeover);
}

Result<std::uint32_t> CommandChannel::check_attach(const session::Frame& frame) {
  const session::AttachRequest request = IVY_TRY(session::decode_attach(frame.payload));
  if (request.job_id != job_id_) return Error{Code::kNotFound, "this supervisor runs another job"};
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

void CommandChannel::attach(const TransportPointer& transport, const session::Frame& frame,
                            std::uint32_t takeover) {
  // A launcher that redials knows that its old transport is broken; we may not have noticed yet.
  if (attached_) close(attached_);
  std::erase(unattached_, transport);
  {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    attached_ = transport;
  }
  lease_.transport_attached(transport->kind);
  if (takeover != std::exchange(takeover_, takeover)) {
    delays_ = {};  // Another launcher has another clock.
    owner_.on_taken_over(session_.take_over());
  }
  session_.transport_up();
  session_.send_handshake(session::FrameType::kAttached, {});
  const std::string received = std::exchange(transport->received, {});
  // Only the Attach is consumed; frames after it wait in the session for attached().
  const Result<std::vector<session::Frame>> again = session_.receive(received);
  if (!again.ok() || !session_.attached(frame.header.acknowledged).ok())
    return lose(transport, TransportLoss::kHungUp);
  deliver(transport, {});
  flush();
}

void CommandChannel::reject(const TransportPointer& transport, const std::string& text) {
  session::FrameHeader header;
  header.length = static_cast<std::uint32_t>(text.size());
  header.type = session::FrameType::kAttached;
  header.sent_at_ns = monotonic_ns();
  const std::string bytes = std::string(session::kPreamble) + session::encode_header(header) + text;
  // A new socket accepts these few bytes immediately. If it does not, closing it is message enough.
  [[maybe_unused]] const ssize_t written =
      ::write(transport->socket.native_handle(), bytes.data(), bytes.size());
  transport->is_rejected = true;
  // This counts as an orderly end: none of our data was cut off.
  lose(transport, TransportLoss::kHalfClosed);
}

void CommandChannel::deliver(const TransportPointer& transport, std::string_view bytes) {
  lease_.received();
  Result<std::vector<session::Frame>> frames = session_.receive(bytes);
  if (!frames.ok()) return lose(transport, TransportLoss::kHungUp);
  const std::int64_t now_ns = monotonic_ns();
  if (session_.last_stamp_ns() != 0)
    delays_.add(now_ns - static_cast<std::int64_t>(session_.last_stamp_ns()), now_ns);
  for (session::Frame& frame : *frames) {
    // A heartbeat of the launcher's second thread, while its loop is busy.
    if (frame.header.type == session::FrameType::kAlive) continue;
    const bool expected = frame.header.type == session::FrameType::kCommand ||
                          frame.header.type == session::FrameType::kInput;
    if (!expected || !owner_.on_frame(frame).ok()) return lose(transport, TransportLoss::kHungUp);
    if (transport->is_closed) return;
  }
  owner_.on_batch_end();
  flush();
}

void CommandChannel::lose(const TransportPointer& transport, TransportLoss loss) {
  if (transport->is_closed) return;
  const bool was_attached = transport == attached_;
  // A launcher on this host may exit before it has attached, and a remote one may be rejected:
  // neither can connect again. Any other launcher may use another transport.
  const bool cannot_reconnect = transport->kind == TransportKind::kLocal || transport->is_rejected;
  const bool was_awaited = transport->is_first && cannot_reconnect && token_.empty();
  // Counts as an attached transport, so that the lease knows the kind of the one that it loses.
  if (was_awaited) lease_.transport_attached(transport->kind);
  close(transport);
  if (!was_attached && !was_awaited) return;
  if (was_attached) session_.transport_down();
  lease_.transport_lost(loss);
  owner_.on_transport_lost();
}

void CommandChannel::close(const TransportPointer& transport) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  transport->is_closed = true;
  boost::system::error_code ignored;
  transport->socket.close(ignored);
  std::erase(unattached_, transport);
  if (attached_ == transport) attached_.reset();
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

bool CommandChannel::refill(Transport& transport) {
  if (transport.out_written < transport.out.size()) return true;
  if (!session_.has_bytes()) return false;
  transport.out = session_.take_bytes(monotonic_ns(), kWriteBytes);
  transport.out_written = 0;
  transport.has_answered = true;
  return true;
}

ssize_t CommandChannel::write_out(Transport& transport) {
  ssize_t count = 0;
  do {
    count = ::write(transport.socket.native_handle(), transport.out.data() + transport.out_written,
                    transport.out.size() - transport.out_written);
  } while (count < 0 && errno == EINTR);
  if (count > 0) transport.out_written += static_cast<std::size_t>(count);
  return count;
}

void CommandChannel::write_some() {
  const TransportPointer transport = attached_;
  if (!transport || transport->is_waiting_writable) return;
  for (int writes = 0; writes < kWritesPerTurn; ++writes) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    if (transport->is_write_broken || !refill(*transport)) return;
    if (write_out(*transport) >= 0) continue;
    if (errno != EAGAIN) {
      transport->is_write_broken = true;
      return;
    }
    transport->is_waiting_writable = true;
    transport->socket.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                                 [this, transport](const boost::system::error_code& error) {
                                   transport->is_waiting_writable = false;
                                   if (!error && transport == attached_) write_some();
                                 });
    return;
  }
  flush();
}

void CommandChannel::send_heartbeat() {
  session_.send_heartbeat(delays_.is_empty() ? "" : session::encode_delay(delays_.value_ns()));
  flush();
}

bool CommandChannel::send_alive(const session::Alive& alive) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  if (!attached_ || !attached_->has_answered || attached_->is_write_broken) return false;
  Transport& transport = *attached_;
  // Frames must not mix: first write the rest of the loop's data, which serves as a heartbeat too.
  if (transport.out_written < transport.out.size()) write_out(transport);
  if (transport.out_written < transport.out.size()) return false;
  transport.out = session::alive_frame(alive, static_cast<std::uint64_t>(monotonic_ns()));
  transport.out_written = 0;
  write_out(transport);  // The loop writes the rest before its next frame.
  return true;
}

}  // namespace ivy
