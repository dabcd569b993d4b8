// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/address_check.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/interfaces.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::uint32_t kDefaultCheckTimeoutMs = 5'000;
constexpr std::uint32_t kMaxCheckTimeoutMs = 60'000;
// "No route to host" may be temporary: a neighbour that has just come up does not answer for its
// address yet. So the check is repeated at this interval, for this long.
constexpr std::chrono::milliseconds kRetryPause{200};
constexpr std::chrono::seconds kRetryTime{2};

// Parses a numeric address; an IPv6 address may have a zone ("fe80::1%eth0").
std::optional<SocketAddress> parse_with_zone(const std::string& text, std::uint16_t port) {
  const std::size_t percent = text.find('%');
  SocketAddress address = parse_address(text.substr(0, percent), port);
  const bool is_v6 = address.storage.ss_family == AF_INET6;
  if (!address.is_valid() || (percent != std::string::npos && !is_v6)) return std::nullopt;
  if (percent != std::string::npos)
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_scope_id =
        if_nametoindex(text.c_str() + percent + 1);
  return address;
}

std::string own_address(int fd) {
  SocketAddress own;
  own.size = sizeof own.storage;
  return getsockname(fd, own.get(), &own.size) == 0 ? host_text(own.storage) : "";
}

// Finds the local end of the route by connecting a datagram socket, which sends nothing. This works
// even if the peer does not answer; for one of our addresses the result is that address.
void find_route(SocketAddress address, AddressChecked& answer) {
  const Descriptor fd(socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  if (connect(fd.get(), address.get(), address.size) == 0)
    answer.set_local_address(own_address(fd.get()));
  for (const InterfaceAddress& found : interface_addresses())
    if (found.address == answer.local_address()) answer.set_interface(found.interface);
}

class AddressCheck : public std::enable_shared_from_this<AddressCheck> {
 public:
  AddressCheck(boost::asio::io_context& loop, std::uint32_t timeout_ms,
               std::function<void(const AddressChecked&)> checked)
      : socket_(loop),
        timer_(loop),
        pause_(loop),
        timeout_ms_(timeout_ms),
        checked_(std::move(checked)) {}

  void start(const SocketAddress& address) {
    address_ = address;
    find_route(address_, answer_);
    timer_.expires_after(std::chrono::milliseconds(timeout_ms_));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->finish(ETIMEDOUT);
    });
    retry_until_ = steady_now() + kRetryTime;
    dial();
  }

 private:
  void dial() {
    if (!checked_) return;
    const int fd = address_.open_socket();
    if (fd < 0) return finish(errno);
    boost::system::error_code ignored;
    socket_.close(ignored);
    socket_.assign(fd);
    if (connect(fd, address_.get(), address_.size) == 0) return finish(0);
    if (errno != EINPROGRESS) return on_answer(errno);
    socket_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error) self->on_answer(self->pending_error());
                       });
  }

  void on_answer(int error) {
    const bool may_pass = error == EHOSTUNREACH || error == ENETUNREACH;
    if (!may_pass || steady_now() >= retry_until_) return finish(error);
    pause_.expires_after(kRetryPause);
    pause_.async_wait([self = shared_from_this()](const boost::system::error_code& waited) {
      if (!waited) self->dial();
    });
  }

  int pending_error() {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_ERROR, &error, &length) != 0)
      return errno;
    return error;
  }

  void finish(int error) {
    if (!checked_) return;
    answer_.set_reachable(error == 0 || error == ECONNREFUSED);
    if (error == ETIMEDOUT) {
      const std::uint32_t tenths = (timeout_ms_ + 50) / 100;
      answer_.set_error("no answer in " + std::to_string(tenths / 10) +
                        (tenths % 10 ? "." + std::to_string(tenths % 10) : "") + " s");
    } else if (!answer_.reachable()) {
      answer_.set_error(std::strerror(error));
    }
    boost::system::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    pause_.cancel();
    std::exchange(checked_, nullptr)(answer_);
  }

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer pause_;
  SocketAddress address_;
  std::chrono::steady_clock::time_point retry_until_;
  const std::uint32_t timeout_ms_;
  std::function<void(const AddressChecked&)> checked_;
  AddressChecked answer_;
};

}  // namespace

void check_address(boost::asio::io_context& loop, const CheckAddress& request,
                   std::function<void(const AddressChecked&)> checked) {
  const std::optional<SocketAddress> address =
      request.port() <= 65535
          ? parse_with_zone(request.address(), static_cast<std::uint16_t>(request.port()))
          : std::nullopt;
  if (!address) {
    AddressChecked answer;
    answer.set_error("not a numeric address and port");
    boost::asio::post(loop, [checked = std::move(checked), answer] { checked(answer); });
    return;
  }
  std::uint32_t timeout_ms =
      request.timeout_ms() == 0 ? kDefaultCheckTimeoutMs : request.timeout_ms();
  timeout_ms = std::min(timeout_ms, kMaxCheckTimeoutMs);
  const auto check = std::make_shared<AddressCheck>(loop, timeout_ms, std::move(checked));
  boost::asio::post(loop, [check, address = *address] { check->start(address); });
}

}  // namespace ivy
