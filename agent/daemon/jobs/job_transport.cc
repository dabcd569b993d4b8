// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/job_transport.h"

#include <sys/socket.h>

#include <array>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// Shared by all transports of a thread: bytes are copied into a message before the next read.
thread_local std::array<char, JobTransport::kMaxDataBytes> read_buffer;

}  // namespace

SocketEnd socket_end_of(StreamEnd end, std::chrono::milliseconds since_received) {
  if (end == StreamEnd::kRequestsEnded) return SocketEnd::kHalfClose;
  return since_received > JobTransport::kReceivedWithin ? SocketEnd::kHoldOpen
                                                        : SocketEnd::kHalfClose;
}

JobTransport::JobTransport(boost::asio::io_context& loop, JobKey key, int socket,
                           std::shared_ptr<OpenStream> stream, TransportOwner& owner)
    : key_(std::move(key)),
      socket_(loop, socket),
      timer_(loop),
      stream_(std::move(stream)),
      owner_(owner) {}

void JobTransport::begin(const agent::v1::Opened& opened) {
  stream_->hand_to(shared_from_this());
  *stream_->reply().mutable_opened() = opened;
  stream_->write();
  stream_->read();
  if (stream_->is_cancelled()) on_cancelled();
}

void JobTransport::hang_up() {
  finish_stream(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the agent is shutting down"));
  end(grpc::Status::OK);
}

void JobTransport::on_read(bool ok) {
  if (is_over_) return;
  if (!ok) return requests_ended();
  received_at_ = Clock::now();
  agent::v1::OpenRequest& request = stream_->request();
  std::string data = std::move(*request.mutable_data());
  request.Clear();
  if (data.size() <= kMaxDataBytes) return take_data(std::move(data));
  finish_stream(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a data message above 64 KiB"));
  stream_ended(StreamEnd::kRequestsEnded);
  drain_socket();
}

void JobTransport::take_data(std::string data) {
  down_ = std::move(data);
  down_written_ = 0;
  write_socket();
}

void JobTransport::write_socket() {
  while (down_written_ < down_.size() && !is_write_broken_) {
    const ssize_t count = send(socket_.native_handle(), down_.data() + down_written_,
                               down_.size() - down_written_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return wait_writable();
    if (count < 0)
      is_write_broken_ = true;
    else
      down_written_ += static_cast<std::size_t>(count);
  }
  down_ = std::string();
  down_written_ = 0;
  if (is_half_closing_) return half_close();
  // After a write error no further message is read: read_socket() soon sees the end of the socket.
  if (stream_ && !is_write_broken_) stream_->read();
}

void JobTransport::wait_writable() {
  socket_.async_wait(stream_descriptor::wait_write,
                     [self = shared_from_this()](const error_code& error) {
                       if (!error && !self->is_over_) self->write_socket();
                     });
}

void JobTransport::on_written(bool ok) {
  if (is_over_) return;
  // on_cancelled() follows for a broken stream.
  if (!ok) return;
  message_size_.written(stream_->reply().data().size(), monotonic_ns());
  stream_->reply().Clear();
  read_socket();
}

void JobTransport::read_socket() {
  for (;;) {
    const ssize_t count =
        recv(socket_.native_handle(), read_buffer.data(), message_size_.bytes(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return wait_readable();
    if (count <= 0) return end(grpc::Status::OK);
    if (is_half_closing_) wait_for_silence();
    if (!stream_) continue;
    stream_->reply().set_data(read_buffer.data(), static_cast<std::size_t>(count));
    return stream_->write();
  }
}

void JobTransport::wait_readable() {
  is_waiting_readable_ = true;
  socket_.async_wait(stream_descriptor::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->is_waiting_readable_ = false;
                       if (!error && !self->is_over_) self->read_socket();
                     });
}

void JobTransport::requests_ended() {
  if (stream_->is_cancelled()) return on_cancelled();
  const auto silence =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - received_at_);
  if (socket_end_of(StreamEnd::kBroken, silence) == SocketEnd::kHalfClose)
    return stream_ended(StreamEnd::kRequestsEnded);
  // After such a silence a broken stream is treated differently: wait for on_cancelled().
  timer_.expires_after(kBreakTogether);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->is_over_ && self->stream_) self->stream_ended(StreamEnd::kRequestsEnded);
  });
}

void JobTransport::on_cancelled() {
  if (is_over_ || !stream_) return;
  finish_stream(grpc::Status(grpc::StatusCode::CANCELLED, "the stream is broken"));
  stream_ended(StreamEnd::kBroken);
  drain_socket();
}

// Resumes reading the socket after the message under way has failed. Only a read shows that the
// supervisor has closed it.
void JobTransport::drain_socket() {
  if (!is_over_ && !is_waiting_readable_) read_socket();
}

void JobTransport::stream_ended(StreamEnd how) {
  if (is_half_closing_) return;
  timer_.cancel();
  const auto silence =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - received_at_);
  if (socket_end_of(how, silence) == SocketEnd::kHoldOpen) return end_after(kHeldOpen);
  is_half_closing_ = true;
  if (down_.empty()) half_close();
}

void JobTransport::half_close() {
  shutdown(socket_.native_handle(), SHUT_WR);
  wait_for_silence();
}

void JobTransport::wait_for_silence() { end_after(kSilenceAfterEnd); }

void JobTransport::end_after(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && !self->is_over_) self->end(grpc::Status::OK);
  });
}

void JobTransport::finish_stream(grpc::Status status) {
  if (!stream_) return;
  stream_->abort(std::move(status));
  stream_.reset();
}

void JobTransport::end(grpc::Status status) {
  if (std::exchange(is_over_, true)) return;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  if (stream_) stream_->finish(std::move(status));
  stream_.reset();
  // The owner may release us.
  const std::shared_ptr<JobTransport> self = shared_from_this();
  owner_.transport_ended(*this);
}

}  // namespace ivy
