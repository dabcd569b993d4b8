// SPDX-License-Identifier: Apache-2.0
// Two descriptors refer to the connection, because Asio and libssh each close their own. libssh
// reads and writes the one, and Asio only waits on the other, a copy in socket_.
//
// A readable socket does not mean that libssh makes progress, and the reverse: libssh may leave
// bytes unread (is_stalled()), or may have taken them before the wait (WaitMode::kPollSoon).
#include "launcher/links/ssh/ssh_wire.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace asio = boost::asio;
using asio::posix::stream_descriptor;

Result<void> SshWire::open(const SshTarget& target, Descriptor connected) {
  // This copy needs another descriptor, and the dial may have used the last one.
  Descriptor watched(fcntl(connected.get(), F_DUPFD_CLOEXEC, 0));
  boost::system::error_code rejected;
  if (watched) socket_.assign(watched.get(), rejected);
  if (!watched || rejected) {
    Error error = errno_error(Code::kResourceExhausted, "watch the connection",
                              watched ? rejected.value() : errno);
    error.fix = "raise the limit of open files (ulimit -n), or use a smaller --fanout";
    return error;
  }
  watched.release();
  session_ = IVY_TRY(SshSession::make(target, std::move(connected)));
  return {};
}

void SshWire::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (std::exchange(is_busy_, false)) session_->abandon();
  session_.reset();
}

std::string SshWire::peek() {
  std::array<char, 256> bytes{};
  const ssize_t count =
      recv(socket_.native_handle(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  return std::string(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
}

BlockingPool::Duration SshWire::time_left() const {
  if (!limit_ns_) return BlockingPool::kNoDeadline;
  const std::uint64_t now = monotonic_ns();
  return BlockingPool::Duration(*limit_ns_ > now ? *limit_ns_ - now : 1);
}

void SshWire::set_limit(std::chrono::nanoseconds time) {
  limit_ns_ = monotonic_ns() + static_cast<std::uint64_t>(time.count());
}

Awaitable<bool> SshWire::ready(WaitMode mode) {
  if (std::exchange(is_woken_, false)) co_return true;
  const std::uint64_t now = monotonic_ns();
  // The caller gets one more try after the limit has passed during a wait.
  if (limit_ns_ && now >= *limit_ns_) co_return false;
  std::chrono::nanoseconds time = mode == WaitMode::kPollSoon ? kPollInterval : kForever;
  const bool stalled = is_stalled();
  if (stalled) time = kPollInterval;
  if (limit_ns_) time = std::min(time, std::chrono::nanoseconds(*limit_ns_ - now));
  // Polls instead of waiting for the socket.
  if (stalled) {
    co_await sequence_.sleep(time);
    co_return true;
  }
  const auto wait_for_socket = [this](const Arrival<bool>& arrive) {
    this->wait_for_socket(arrive);
  };
  co_await sequence_.wait_at_most<bool>(time, wait_for_socket);
  boost::system::error_code ignored;
  socket_.cancel(ignored);
  is_woken_ = false;
  co_return true;
}

// True if the socket has been readable since the last wait and libssh has read nothing in between,
// such as after the server has closed the connection. Waiting for the socket would then return
// immediately each time, which is a busy loop.
bool SshWire::is_stalled() {
  char byte = 0;
  const long peeked = recv(socket_.native_handle(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
  if (peeked < 0) {
    unread_.reset();
    return false;
  }
  int unread = 0;
  ioctl(socket_.native_handle(), FIONREAD, &unread);
  return std::exchange(unread_, unread) == unread;
}

void SshWire::wait_for_socket(const Arrival<bool>& arrive) {
  arrive_ = arrive;
  const auto woken = [arrive](const boost::system::error_code& error) {
    if (!error) arrive(true);
  };
  socket_.async_wait(stream_descriptor::wait_read, woken);
  if (session_->wants_write()) socket_.async_wait(stream_descriptor::wait_write, woken);
}

void SshWire::wake() {
  is_woken_ = true;
  asio::post(sequence_.loop(), [arrive = arrive_] {
    if (arrive) arrive(true);
  });
}

}  // namespace ivy
