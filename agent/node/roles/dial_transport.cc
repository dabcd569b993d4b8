// SPDX-License-Identifier: Apache-2.0
// run_dial_transport() at the end is the sequence: connect (connect_to_any()), authenticate and
// send the greeting (send_greeting()), then carry(): wait for the launcher's IVYOPEN line
// (read_opening()), connect to the supervisor (open_job()), and copy in both directions
// (DialCopier). DeadlineStream adds deadlines to the steps before copying.
#include "agent/node/roles/dial_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "agent/node/roles/relay.h"
#include "agent/node/roles/warden.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"
#include "proto/trust/psk_tls.h"

namespace ivy {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Step = PskStream::Step;

constexpr milliseconds kReceivedPause{250};
// Steps in a row before checking signals and deadlines again.
constexpr int kMovesPerTurn = 64;
// A launcher that acknowledges no byte for this long is unreachable; its lease expired long before.
constexpr unsigned kUserTimeoutMs = 120'000;

void send_event(int event_fd, const std::string& line) {
  const std::string text = line + "\n";
  // The dialer reads immediately; if it has exited, we exit soon, too.
  [[maybe_unused]] const ssize_t written = write(event_fd, text.data(), text.size());
}

// Returns 0 or an errno.
int await_connection(int fd) {
  pollfd waiting{fd, POLLOUT, 0};
  if (poll(&waiting, 1, kDialConnectTimeoutMs) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Result<int> connect_to(const DialAddress& address) {
  SocketAddress target = parse_address(address.address, address.port);
  if (!target.is_valid())
    return Error{Code::kInvalidArgument, address.address + " is not a numeric address"};
  Descriptor opened(target.open_socket());
  if (!opened) return errno_error(Code::kUnavailable, "socket", errno);
  const int fd = opened.get();
  disable_nagle(fd);
  set_user_timeout(fd, kUserTimeoutMs);
  int error = 0;
  if (connect(fd, target.get(), target.size) != 0)
    error = errno == EINPROGRESS ? await_connection(fd) : errno;
  if (error == 0) return opened.release();
  return errno_error(Code::kUnavailable, with_port(address.address, address.port), error);
}

Result<int> connect_to_any(const std::vector<DialAddress>& addresses) {
  std::string tried;
  for (const DialAddress& address : addresses) {
    Result<int> connected = connect_to(address);
    if (connected.ok()) return connected;
    tried += (tried.empty() ? "" : ", ") + connected.error().message;
  }
  return Error{Code::kUnavailable, "cannot reach the launcher (" + tried + ")"};
}

// A stream whose operations wait until a deadline.
class DeadlineStream {
 public:
  DeadlineStream(PskStream& stream, int fd, int timeout_ms)
      : stream_(stream), fd_(fd), deadline_(Clock::now() + milliseconds(timeout_ms)) {}

  Result<void> do_handshake() {
    return until_done([this] { return stream_.do_handshake(); });
  }
  Result<void> write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      std::size_t count = 0;
      IVY_CHECK(until_done([&] { return stream_.write(bytes, count); }));
      bytes.remove_prefix(count);
    }
    return {};
  }
  Result<std::string> read_some() {
    std::array<char, 4096> buffer;
    std::size_t count = 0;
    IVY_CHECK(until_done([&] { return stream_.read(buffer.data(), buffer.size(), count); }));
    return std::string(buffer.data(), count);
  }

 private:
  template <class Try>
  Result<void> until_done(Try attempt) {
    for (;;) {
      const Step step = attempt();
      if (step == Step::kDone) return {};
      if (step == Step::kEnded)
        return Error{Code::kCancelled, "the launcher closed the connection"};
      if (step == Step::kBroken) return Error{Code::kUnauthenticated, stream_.failure()};
      pollfd waiting{fd_, static_cast<short>(step == Step::kWantRead ? POLLIN : POLLOUT), 0};
      const int ready = poll(&waiting, 1, milliseconds_until(deadline_));
      if (ready == 0) return Error{Code::kDeadlineExceeded, "the launcher did not answer in time"};
    }
  }

  PskStream& stream_;
  const int fd_;
  const Clock::time_point deadline_;
};

struct Opening {
  OpenLine request;
  std::string rest;  // Bytes after the line, which belong to the supervisor.
};

// The launcher answers when it needs this host's transport, which may take a while.
Result<Opening> read_opening(PskStream& stream, int fd) {
  DeadlineStream timed_stream(stream, fd, kOpenLineTimeoutMs);
  std::string text;
  while (text.find('\n') == std::string::npos) {
    if (text.size() > kOpenLineMaxBytes)
      return Error{Code::kInvalidArgument, "the launcher's answer is longer than an IVYOPEN line"};
    text += IVY_TRY(timed_stream.read_some());
  }
  const std::size_t newline = text.find('\n');
  Opening opening;
  opening.request = IVY_TRY(parse_open_line(std::string_view(text).substr(0, newline)));
  opening.request.step_task = getppid();
  opening.rest = text.substr(newline + 1);
  return opening;
}

struct Buffer {
  std::string bytes = std::string(kRelayBufferBytes, '\0');
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_empty() const { return begin == end; }
  std::string_view view() const { return std::string_view(bytes).substr(begin, end - begin); }
  void clear() { begin = end = 0; }
};

class DialCopier {
 public:
  DialCopier(PskStream& stream, int stream_fd, int socket_fd, int event_fd, const std::string& rest)
      : stream_(stream), stream_fd_(stream_fd), socket_fd_(socket_fd), event_fd_(event_fd) {
    std::copy(rest.begin(), rest.end(), down_.bytes.begin());
    down_.end = rest.size();
    sigset_t all;
    sigfillset(&all);
    signal_fd_ = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  void run() {
    for (;;) {
      bool moved = true;
      for (int moves = 0; moved && moves < kMovesPerTurn; ++moves) moved = move();
      if (is_over()) break;
      wait(moved);
    }
    if (!stream_ended_ && !broken_) stream_.send_close_notify();
  }

 private:
  bool is_over() const {
    if (broken_) return true;
    // The supervisor has closed the socket, and its last bytes have been passed on.
    if (socket_ended_) return up_.is_empty();
    return deadline_ && Clock::now() >= *deadline_;
  }

  bool move() {
    stream_wants_ = 0;
    bool moved = false;
    if (down_.is_empty() && !stream_ended_) moved |= read_stream();
    if (!down_.is_empty()) moved |= write_socket();
    if (up_.is_empty() && !socket_ended_) moved |= read_socket();
    if (!up_.is_empty()) moved |= write_stream();
    if (stream_ended_ && down_.is_empty() && !half_closed_) {
      half_closed_ = true;
      shutdown(socket_fd_, SHUT_WR);
    }
    return moved;
  }

  bool read_stream() {
    std::size_t count = 0;
    if (!step(stream_.read(down_.bytes.data(), down_.bytes.size(), count))) return false;
    down_.begin = 0;
    down_.end = count;
    const Clock::time_point now = Clock::now();
    if (now - received_sent_at_ >= kReceivedPause) {
      received_sent_at_ = now;
      send_event(event_fd_, DialEvent::kReceived);
    }
    return true;
  }

  bool write_stream() {
    // These bytes no longer have a reader.
    if (stream_ended_) {
      up_.clear();
      return false;
    }
    std::size_t count = 0;
    if (!step(stream_.write(up_.view(), count))) return false;
    up_.begin += count;
    return true;
  }

  // Returns true if bytes have moved.
  bool step(Step result) {
    switch (result) {
      case Step::kDone:
        return true;
      case Step::kWantRead:
        stream_wants_ |= POLLIN;
        return false;
      case Step::kWantWrite:
        stream_wants_ |= POLLOUT;
        return false;
      case Step::kEnded:
        if (!stream_ended_) send_event(event_fd_, DialEvent::kEnded);
        stream_ended_ = true;
        deadline_ = Clock::now() + milliseconds(kHalfCloseSilenceMs);
        return false;
      case Step::kBroken:
        if (!broken_) send_event(event_fd_, std::string(DialEvent::kWhy) + " " + stream_.failure());
        broken_ = true;
        return false;
    }
    return false;
  }

  bool read_socket() {
    const ssize_t count = ::read(socket_fd_, up_.bytes.data(), up_.bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
      socket_ended_ = true;
      return false;
    }
    up_.begin = 0;
    up_.end = static_cast<std::size_t>(count);
    if (stream_ended_) deadline_ = Clock::now() + milliseconds(kHalfCloseSilenceMs);
    return true;
  }

  bool write_socket() {
    const std::string_view bytes = down_.view();
    const ssize_t count = ::write(socket_fd_, bytes.data(), bytes.size());
    if (count > 0) down_.begin += static_cast<std::size_t>(count);
    // The supervisor no longer reads, but may still send.
    if (count < 0 && errno != EAGAIN && errno != EINTR) down_.clear();
    return count > 0;
  }

  void wait(bool moved) {
    const auto wants = [](bool wanted, int event) {
      return static_cast<short>(wanted ? event : 0);
    };
    std::array<pollfd, 3> fds{};
    fds[0] = {stream_fd_, static_cast<short>(stream_wants_), 0};
    fds[1] = {socket_fd_, wants(up_.is_empty() && !socket_ended_, POLLIN), 0};
    fds[1].events |= wants(!down_.is_empty(), POLLOUT);
    fds[2] = {signal_fd_, POLLIN, 0};
    // poll() would return immediately every time for a descriptor on which nothing is requested.
    if (stream_ended_ || fds[0].events == 0) fds[0].fd = -1;
    if (fds[1].events == 0) fds[1].fd = -1;
    const int timeout = moved ? 0 : deadline_ ? milliseconds_until(*deadline_) : -1;
    if (poll(fds.data(), fds.size(), timeout) > 0 && fds[2].revents != 0) send_signals();
  }

  void send_signals() {
    signalfd_siginfo info{};
    while (::read(signal_fd_, &info, sizeof info) == sizeof info)
      send_event(event_fd_, std::string(DialEvent::kSignal) + " " + std::to_string(info.ssi_signo));
  }

  PskStream& stream_;
  const int stream_fd_;
  const int socket_fd_;
  const int event_fd_;
  int signal_fd_ = -1;
  Buffer down_;
  Buffer up_;
  int stream_wants_ = 0;
  bool stream_ended_ = false;
  bool socket_ended_ = false;
  bool half_closed_ = false;
  bool broken_ = false;
  Clock::time_point received_sent_at_{};
  std::optional<Clock::time_point> deadline_;
};

int fail(PskStream& stream, int fd, const Error& error) {
  const bool is_missing = error.code == Code::kNotFound;
  std::string line = kFailurePrefix + (is_missing ? std::string("no-such-job") : error.message);
  std::ranges::replace(line, '\n', ' ');
  DeadlineStream timed_stream(stream, fd, kDialHandshakeTimeoutMs);
  if (timed_stream.write_all(line + "\n").ok()) stream.send_close_notify();
  return is_missing ? kRelayNoSuchJob : kRelayFailed;
}

Result<void> send_greeting(PskStream& stream, int fd, const DialGreeting& greeting) {
  DeadlineStream timed_stream(stream, fd, kDialHandshakeTimeoutMs);
  IVY_CHECK(timed_stream.do_handshake());
  return timed_stream.write_all(encode_dial_greeting(greeting));
}

int carry(PskStream& stream, int fd, const DialAttempt& attempt) {
  const Result<Opening> opening = read_opening(stream, fd);
  if (!opening.ok()) {
    send_event(attempt.event_fd, std::string(DialEvent::kWhy) + " " + opening.error().message);
    return kDialNotReached;
  }
  const Result<int> socket = open_job(opening->request);
  if (!socket.ok()) {
    send_event(attempt.event_fd, std::string(DialEvent::kWhy) + " " + socket.error().message);
    return fail(stream, fd, socket.error());
  }
  fcntl(*socket, F_SETFL, fcntl(*socket, F_GETFL) | O_NONBLOCK);
  send_event(attempt.event_fd, DialEvent::kUp);
  DialCopier(stream, fd, *socket, attempt.event_fd, opening->rest).run();
  return kDialOver;
}

}  // namespace

int run_dial_transport(const DialAttempt& attempt) {
  const auto not_reached = [&](const Error& error) {
    send_event(attempt.event_fd, std::string(DialEvent::kWhy) + " " + error.message);
    return kDialNotReached;
  };
  const DialOrder& order = *attempt.order;
  const Result<std::unique_ptr<PskTls>> tls =
      PskTls::make(PskTls::Side::kClient, order.job_id, order.key);
  if (!tls.ok()) return not_reached(tls.error());
  const Result<int> connected = connect_to_any(order.addresses);
  if (!connected.ok()) return not_reached(connected.error());
  PskStream stream = (*tls)->stream(*connected);
  const Result<void> greeting_sent = send_greeting(stream, *connected, attempt.greeting);
  if (!greeting_sent.ok()) return not_reached(greeting_sent.error());
  if (attempt.greeting.kind == DialGreeting::Kind::kSignal) {
    stream.send_close_notify();
    return kDialOver;
  }
  return carry(stream, *connected, attempt);
}

}  // namespace ivy
