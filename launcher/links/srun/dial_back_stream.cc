// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/srun/dial_back_stream.h"

#include <sys/socket.h>

#include <utility>

#include "launcher/links/tcp_dial.h"
#include "proto/os/socket_options.h"

namespace ivy {
using tcp = boost::asio::ip::tcp;
using boost::system::error_code;
using Outcome = PskStream::Step;

namespace {

// The kernel ends a connection whose peer acknowledges nothing for this long; the host's lease has
// ended well before.
constexpr unsigned kUserTimeoutMs = 120'000;
constexpr unsigned char kHandshakeRecord = 22;
constexpr std::size_t kRecordHeaderBytes = 5;

}  // namespace

DialBackStream::DialBackStream(tcp::socket socket, PskTls& tls) : socket_(std::move(socket)) {
  error_code ignored;
  peer_address_ = numeric_address(socket_.remote_endpoint(ignored).address());
  local_address_ = numeric_address(socket_.local_endpoint(ignored).address());
  socket_.native_non_blocking(true, ignored);
  const int fd = socket_.native_handle();
  disable_nagle(fd);
  set_user_timeout(fd, kUserTimeoutMs);
  stream_ = tls.stream(fd);
}

void DialBackStream::when(Outcome step, Step again) {
  const auto what = step == Outcome::kWantWrite ? tcp::socket::wait_write : tcp::socket::wait_read;
  socket_.async_wait(what, [self = shared_from_this(), again](const error_code& error) {
    if (!error && !self->is_stopped_) (self.get()->*again)();
  });
}

void DialBackStream::greet(Greeted greeted) {
  greeted_ = std::move(greeted);
  when(Outcome::kWantRead, &DialBackStream::do_handshake);
}

// Checks the header of the first record before OpenSSL reads it, because OpenSSL allocates as many
// bytes as it claims. Returns true also if there are too few bytes to tell: OpenSSL then waits for
// more, or reports the end.
bool DialBackStream::looks_like_tls() {
  std::array<unsigned char, kRecordHeaderBytes> header{};
  const ssize_t count =
      recv(socket_.native_handle(), header.data(), header.size(), MSG_PEEK | MSG_DONTWAIT);
  // Nothing has arrived, or the peer has closed the connection: OpenSSL handles both.
  if (count <= 0) return true;
  if (header[0] != kHandshakeRecord) return false;
  if (static_cast<std::size_t>(count) < header.size()) return true;
  return static_cast<std::size_t>(header[3]) * 256 + header[4] <= kUnprovedMaxBytes;
}

void DialBackStream::do_handshake() {
  if (stream_.received_bytes() == 0 && !looks_like_tls())
    return answer(
        Error{Code::kUnauthenticated, "it did not start a TLS handshake as ivy-node does"});
  const Outcome step = stream_.do_handshake();
  if (stream_.received_bytes() > kUnprovedMaxBytes)
    return answer(Error{Code::kUnauthenticated, "it sent too much data before it authenticated"});
  if (step == Outcome::kDone) return read_greeting();
  if (step == Outcome::kWantRead || step == Outcome::kWantWrite)
    return when(step, &DialBackStream::do_handshake);
  reject(step);
}

void DialBackStream::send_greeting(const DialGreeting& own,
                                   std::function<void(const Result<void>&)> on_greeting_sent) {
  greeting_ = encode_dial_greeting(own);
  on_greeting_sent_ = std::move(on_greeting_sent);
  when(Outcome::kWantWrite, &DialBackStream::do_handshake_first);
}

void DialBackStream::do_handshake_first() {
  const Outcome step = stream_.do_handshake();
  if (step == Outcome::kWantRead || step == Outcome::kWantWrite)
    return when(step, &DialBackStream::do_handshake_first);
  const auto on_greeting_sent = std::exchange(on_greeting_sent_, {});
  if (step == Outcome::kEnded)
    return on_greeting_sent(Error{Code::kCancelled, "it closed the connection"});
  if (step != Outcome::kDone)
    return on_greeting_sent(Error{Code::kUnauthenticated, stream_.failure()});
  write(greeting_);
  on_greeting_sent(Result<void>());
}

void DialBackStream::read_greeting() {
  std::array<char, kDialGreetingMaxBytes> buffer;
  std::size_t count = 0;
  const Outcome step = stream_.read(buffer.data(), buffer.size() - greeting_.size(), count);
  if (step == Outcome::kWantRead || step == Outcome::kWantWrite)
    return when(step, &DialBackStream::read_greeting);
  if (step != Outcome::kDone) return reject(step);
  greeting_.append(buffer.data(), count);
  // The peer sends nothing more until it gets an answer.
  if (greeting_.ends_with('\n'))
    return answer(parse_dial_greeting(std::string_view(greeting_).substr(0, greeting_.size() - 1)));
  if (greeting_.size() >= kDialGreetingMaxBytes)
    return answer(Error{Code::kUnauthenticated, "its greeting is too long"});
  read_greeting();
}

void DialBackStream::answer(const Result<DialGreeting>& greeting) {
  const Greeted greeted = std::exchange(greeted_, {});
  if (greeted) greeted(greeting);
}

void DialBackStream::reject(Outcome step) {
  if (step == Outcome::kEnded) return answer(Error{Code::kCancelled, "it closed the connection"});
  answer(
      Error{Code::kUnauthenticated, "it does not have the job's key (" + stream_.failure() + ")"});
}

void DialBackStream::start(DialBackStreamEvents& events) {
  events_ = &events;
  read();
}

void DialBackStream::read() {
  std::array<char, kReadBytes> buffer;
  for (int reads = 0;; ++reads) {
    std::size_t count = 0;
    Outcome step = Outcome::kDone;
    bool has_pending = false;
    {
      const std::lock_guard lock(mutex_);
      step = stream_.read(buffer.data(), buffer.size(), count);
      has_pending = stream_.has_pending();
    }
    if (step == Outcome::kWantRead || step == Outcome::kWantWrite)
      return when(step, &DialBackStream::read);
    if (step == Outcome::kEnded) return end("end of file");
    if (step == Outcome::kBroken) return end(stream_.failure());
    const std::shared_ptr<DialBackStream> self = shared_from_this();
    events_->stream_bytes(std::string_view(buffer.data(), count));
    if (is_stopped_) return;
    if (reads < kReadsPerTurn) continue;
    // Bytes that OpenSSL has buffered do not make the socket readable. Waiting until it is
    // writable, which it nearly always is, continues in a later turn.
    return when(has_pending ? Outcome::kWantWrite : Outcome::kWantRead, &DialBackStream::read);
  }
}

void DialBackStream::write(std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    queued_.append(bytes);
  }
  if (!std::exchange(is_writing_, true)) write_queued();
}

PskStream::Step DialBackStream::write_all_queued() {
  while (written_ < queued_.size()) {
    std::size_t count = 0;
    const Outcome step = stream_.write(std::string_view(queued_).substr(written_), count);
    if (step != Outcome::kDone) return step;
    written_ += count;
  }
  queued_.clear();
  written_ = 0;
  return Outcome::kDone;
}

void DialBackStream::write_alive(std::string_view frame) {
  const std::lock_guard lock(mutex_);
  // Frames must not mix: the rest of a frame that the loop has begun is written first.
  if (is_stopped_ || write_all_queued() != Outcome::kDone) return;
  queued_ = frame;
  write_all_queued();  // If only a part leaves, the loop writes the rest before its next bytes.
}

void DialBackStream::write_queued() {
  Outcome step = Outcome::kDone;
  {
    const std::lock_guard lock(mutex_);
    step = write_all_queued();
  }
  if (step == Outcome::kWantRead || step == Outcome::kWantWrite)
    return when(step, &DialBackStream::write_queued);
  // If the peer has closed the connection, read() notices it too, after the bytes that the peer had
  // sent.
  if (step != Outcome::kDone) return;
  is_writing_ = false;
  // In a later turn, because the caller may still be inside write().
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code& error) {
    if (!error && !self->is_stopped_ && !self->is_writing_ && self->events_ != nullptr)
      self->events_->stream_drained();
  });
}

void DialBackStream::stop() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_stopped_, true)) return;
  stream_.send_close_notify();
  error_code ignored;
  socket_.close(ignored);
  greeted_ = {};
  on_greeting_sent_ = {};
}

void DialBackStream::end(const std::string& why) {
  stop();
  events_->stream_ended(why);
}

}  // namespace ivy
