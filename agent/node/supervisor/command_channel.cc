// SPDX-License-Identifier: Apache-2.0
// The path of a link: accept_pending() and add_link() take the connection,
// take_unattached() and check_attach() read its first frame, attach() makes it the session's
// link in place of an older one, deliver() passes its frames to the supervisor, and lose()
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
LinkLoss loss_of(int fd) {
  pollfd poller{fd, POLLIN | POLLRDHUP, 0};
  if (poll(&poller, 1, 0) < 0) return LinkLoss::kHungUp;
  return (poller.revents & (POLLHUP | POLLERR)) != 0 ? LinkLoss::kHungUp : LinkLoss::kHalfClosed;
}

}  // namespace

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

struct CommandChannel::Link {
  Link(boost::asio::io_context& loop, int fd, LinkPeer link_peer)
      : socket(loop, fd), peer(link_peer) {}

  boost::asio::posix::stream_descriptor socket;
  LinkPeer peer;
  bool is_first = false;  // The link for which this supervisor was started.
  bool is_rejected = false;
  std::uint64_t attach_by_ns = 0;
  // For a link that has not attached: the bytes so far, and a separate decoder, which keeps
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
  if (start.link_fd >= 0) {
    add_link(start.link_fd, start.peer, nanoseconds_of(kFirstAttachTimeout));
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
      add_link(fd.release(), LinkPeer::kRelay, nanoseconds_of(kAttachTimeout));
  }
}

void CommandChannel::add_link(int fd, LinkPeer peer, std::uint64_t attach_timeout_ns) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const auto link = std::make_shared<Link>(loop_, fd, peer);
  link->attach_by_ns = monotonic_ns() + attach_timeout_ns;
  link->decoder.limit_payload(session::kMaxAttachBytes);
  unattached_.push_back(link);
  wait_readable(link);
}

void CommandChannel::wait_readable(const LinkPointer& link) {
  link->socket.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [this, link](const boost::system::error_code& error) {
                            if (!error && !link->is_closed) read_some(link);
                          });
}

void CommandChannel::read_some(const LinkPointer& link) {
  const ssize_t count = ::read(link->socket.native_handle(), buffer_.get(), kReadBytes);
  if (count == 0) return lose(link, loss_of(link->socket.native_handle()));
  if (count < 0 && errno != EAGAIN && errno != EINTR) return lose(link, LinkLoss::kHungUp);
  if (count > 0) {
    const std::string_view bytes(buffer_.get(), static_cast<std::size_t>(count));
    if (link == attached_)
      deliver(link, bytes);
    else
      take_unattached(link, bytes);
  }
  if (!link->is_closed) wait_readable(link);
}

void CommandChannel::hang_up() {
  if (attached_) shutdown(attached_->socket.native_handle(), SHUT_RDWR);
}

void CommandChannel::tick(std::uint64_t now_ns) {
  const std::vector<LinkPointer> unattached = unattached_;
  for (const LinkPointer& link : unattached)
    if (now_ns >= link->attach_by_ns) lose(link, LinkLoss::kHungUp);
  if (!std::exchange(accept_paused_, false)) return;
  accept();
}

void CommandChannel::take_unattached(const LinkPointer& link, std::string_view bytes) {
  link->received += bytes;
  if (!link->decoder.feed(bytes).ok()) return lose(link, LinkLoss::kHungUp);
  const std::optional<session::Frame> frame = link->decoder.next();
  if (!frame) {
    constexpr std::size_t kLongestAttach =
        session::kPreamble.size() + session::kHeaderBytes + session::kMaxAttachBytes;
    if (link->received.size() > kLongestAttach) lose(link, LinkLoss::kHungUp);
    return;
  }
  if (frame->header.type != session::FrameType::kAttach) return lose(link, LinkLoss::kHungUp);
  const Result<std::uint32_t> takeover = check_attach(*frame);
  if (!takeover.ok()) return reject(link, takeover.error().message);
  attach(link, *frame, *takeover);
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

void CommandChannel::attach(const LinkPointer& link, const session::Frame& frame,
                            std::uint32_t takeover) {
  // A launcher that redials knows that its old link is broken; we may not have noticed yet.
  if (attached_) close(attached_);
  std::erase(unattached_, link);
  {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    attached_ = link;
  }
  lease_.link_attached(link->peer);
  if (takeover != std::exchange(takeover_, takeover)) {
    delays_ = {};  // Another launcher has another clock.
    owner_.on_taken_over(session_.take_over());
  }
  session_.link_up();
  session_.send_handshake(session::FrameType::kAttached, {});
  const std::string received = std::exchange(link->received, {});
  // Only the Attach is consumed; frames after it wait in the session for attached().
  const Result<std::vector<session::Frame>> again = session_.receive(received);
  if (!again.ok() || !session_.attached(frame.header.acknowledged).ok())
    return lose(link, LinkLoss::kHungUp);
  deliver(link, {});
  flush();
}

void CommandChannel::reject(const LinkPointer& link, const std::string& text) {
  session::FrameHeader header;
  header.length = static_cast<std::uint32_t>(text.size());
  header.type = session::FrameType::kAttached;
  header.sent_at_ns = monotonic_ns();
  const std::string bytes = std::string(session::kPreamble) + session::encode_header(header) + text;
  // A new socket accepts these few bytes immediately. If it does not, closing it is message enough.
  [[maybe_unused]] const ssize_t written =
      ::write(link->socket.native_handle(), bytes.data(), bytes.size());
  link->is_rejected = true;
  // This counts as an orderly end: none of our data was cut off.
  lose(link, LinkLoss::kHalfClosed);
}

void CommandChannel::deliver(const LinkPointer& link, std::string_view bytes) {
  lease_.received();
  Result<std::vector<session::Frame>> frames = session_.receive(bytes);
  if (!frames.ok()) return lose(link, LinkLoss::kHungUp);
  const std::int64_t now_ns = monotonic_ns();
  if (session_.last_stamp_ns() != 0)
    delays_.add(now_ns - static_cast<std::int64_t>(session_.last_stamp_ns()), now_ns);
  for (session::Frame& frame : *frames) {
    // A heartbeat of the launcher's second thread, while its loop is busy.
    if (frame.header.type == session::FrameType::kAlive) continue;
    const bool expected = frame.header.type == session::FrameType::kCommand ||
                          frame.header.type == session::FrameType::kInput;
    if (!expected || !owner_.on_frame(frame).ok()) return lose(link, LinkLoss::kHungUp);
    if (link->is_closed) return;
  }
  owner_.on_batch_end();
  flush();
}

void CommandChannel::lose(const LinkPointer& link, LinkLoss loss) {
  if (link->is_closed) return;
  const bool was_attached = link == attached_;
  // A launcher on this host may exit before it has attached, and a remote one may be rejected:
  // neither can connect again. Any other launcher may use another link.
  const bool cannot_reconnect = link->peer == LinkPeer::kLauncher || link->is_rejected;
  const bool was_awaited = link->is_first && cannot_reconnect && token_.empty();
  // Counts as an attached link, so that the lease knows the peer of the one that it loses.
  if (was_awaited) lease_.link_attached(link->peer);
  close(link);
  if (!was_attached && !was_awaited) return;
  if (was_attached) session_.link_down();
  lease_.link_lost(loss);
  owner_.on_link_lost();
}

void CommandChannel::close(const LinkPointer& link) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  link->is_closed = true;
  boost::system::error_code ignored;
  link->socket.close(ignored);
  std::erase(unattached_, link);
  if (attached_ == link) attached_.reset();
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

bool CommandChannel::refill(Link& link) {
  if (link.out_written < link.out.size()) return true;
  if (!session_.has_bytes()) return false;
  link.out = session_.take_bytes(monotonic_ns(), kWriteBytes);
  link.out_written = 0;
  link.has_answered = true;
  return true;
}

ssize_t CommandChannel::write_out(Link& link) {
  ssize_t count = 0;
  do {
    count = ::write(link.socket.native_handle(), link.out.data() + link.out_written,
                    link.out.size() - link.out_written);
  } while (count < 0 && errno == EINTR);
  if (count > 0) link.out_written += static_cast<std::size_t>(count);
  return count;
}

void CommandChannel::write_some() {
  const LinkPointer link = attached_;
  if (!link || link->is_waiting_writable) return;
  for (int writes = 0; writes < kWritesPerTurn; ++writes) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    if (link->is_write_broken || !refill(*link)) return;
    if (write_out(*link) >= 0) continue;
    if (errno != EAGAIN) {
      link->is_write_broken = true;
      return;
    }
    link->is_waiting_writable = true;
    link->socket.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                            [this, link](const boost::system::error_code& error) {
                              link->is_waiting_writable = false;
                              if (!error && link == attached_) write_some();
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
  Link& link = *attached_;
  // Frames must not mix: first write the rest of the loop's data, which serves as a heartbeat too.
  if (link.out_written < link.out.size()) write_out(link);
  if (link.out_written < link.out.size()) return false;
  link.out = session::alive_frame(alive, static_cast<std::uint64_t>(monotonic_ns()));
  link.out_written = 0;
  write_out(link);  // The loop writes the rest before its next frame.
  return true;
}

}  // namespace ivy
