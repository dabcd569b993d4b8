#include "launcher/links/ssh/ssh_wire.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

namespace ivy {
namespace asio = boost::asio;
using asio::posix::stream_descriptor;
using std::chrono::steady_clock;

Result<void> SshWire::open(const SshTarget& target, Descriptor connected) {
  // libssh has the descriptor itself; the dial may have taken the last one.
  Descriptor watched(fcntl(connected.get(), F_DUPFD_CLOEXEC, 0));
  boost::system::error_code refused;
  if (watched) socket_.assign(watched.get(), refused);
  if (!watched || refused) {
    Error error = errno_error(Code::kResourceExhausted, "watch the connection",
                              watched ? refused.value() : errno);
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
  session_.reset();
}

void SshWire::set_limit(steady_clock::duration time) { limit_ = steady_clock::now() + time; }

Awaitable<bool> SshWire::ready(Look look) {
  const auto now = steady_clock::now();
  if (std::exchange(is_woken_, false)) co_return true;
  if (now >= limit_) co_return false;
  auto time = limit_ - now;
  if (look == Look::kSoonAnyway) time = std::min<steady_clock::duration>(time, kLookAgain);
  const auto wait_for_socket = [this](const Arrival<bool>& arrive) {
    this->wait_for_socket(arrive);
  };
  co_await sequence_.wait_at_most<bool>(time, wait_for_socket);
  boost::system::error_code ignored;
  socket_.cancel(ignored);
  is_woken_ = false;
  co_return true;
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
