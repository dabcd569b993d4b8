#include "launcher/links/tcp_dial.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

// The session above has its own heartbeats; these only keep a dead connection from living for
// hours.
void set_socket_options(int fd) {
  const int on = 1;
  const int idle_s = 15;
  const int interval_s = 5;
  const int probes = 4;
  const unsigned user_timeout_ms = 60'000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

}  // namespace

std::string numeric_address(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

TcpDial::TcpDial(asio::io_context& loop, asio::thread_pool& resolvers, Limits limits)
    : loop_(loop), resolvers_(resolvers), limits_(limits), timer_(loop), socket_(loop) {}

void TcpDial::start(const std::string& host, std::uint16_t port, Handlers handlers) {
  host_ = host;
  port_ = port;
  handlers_ = std::move(handlers);
  boost::system::error_code error;
  const asio::ip::address numeric = asio::ip::make_address(host, error);
  if (error) return resolve();
  endpoints_ = {tcp::endpoint(numeric, port)};
  asio::post(loop_, [self = shared_from_this()] { self->try_next(); });
}

void TcpDial::cancel() {
  over_ = true;
  handlers_ = {};
  timer_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void TcpDial::resolve() {
  set_timer(limits_.resolve, [this] {
    fail(LinkFailure::kUnresolved, "the name server did not answer for " + host_ + " in time",
         "getent hosts " + host_);
  });
  // The answer comes back to the loop, which may be gone by then with everything that belongs to
  // it.
  asio::post(resolvers_, [self = weak_from_this(), host = host_, port = port_, &loop = loop_,
                          work = asio::make_work_guard(loop_)] {
    asio::io_context here;
    tcp::resolver resolver(here);
    boost::system::error_code error;
    const auto found = resolver.resolve(host, std::to_string(port), error);
    Endpoints endpoints;
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
    asio::post(loop, [self, error, endpoints] {
      if (const auto alive = self.lock()) alive->resolved(error, endpoints);
    });
  });
}

void TcpDial::resolved(const boost::system::error_code& error, Endpoints endpoints) {
  if (over_) return;
  timer_.cancel();
  if (error || endpoints.empty()) {
    return fail(LinkFailure::kUnresolved,
                "cannot resolve " + host_ + ": " +
                    (error == asio::error::host_not_found ? "no such name" : error.message()),
                "check the spelling, or: getent hosts " + host_);
  }
  if (endpoints.size() > kMaxAddresses) endpoints.resize(kMaxAddresses);
  endpoints_ = std::move(endpoints);
  try_next();
}

void TcpDial::try_next() {
  if (over_) return;
  if (next_ == endpoints_.size()) return give_up();
  const bool is_last = next_ + 1 == endpoints_.size();
  boost::system::error_code ignored;
  socket_.close(ignored);
  timed_out_ = false;
  set_timer(is_last ? limits_.connect : limits_.connect_of_many, [this] {
    timed_out_ = true;
    boost::system::error_code nothing;
    socket_.close(nothing);
  });
  socket_.async_connect(
      endpoints_[next_],
      [self = shared_from_this()](const boost::system::error_code& error) { self->tried(error); });
}

void TcpDial::tried(const boost::system::error_code& error) {
  if (over_) return;
  timer_.cancel();
  if (!error) return finish();
  if (error == asio::error::connection_refused) refused_ = true;
  failures_ += failures_.empty() ? "" : "; ";
  failures_ += numeric_address(endpoints_[next_].address()) + " port " + std::to_string(port_) +
               ": " + (timed_out_ ? "no answer" : error.message());
  ++next_;
  try_next();
}

void TcpDial::give_up() {
  const std::string typed = host_ + " port " + std::to_string(port_);
  if (refused_) {
    return fail(
        LinkFailure::kRefused, "connect to " + failures_,
        "is sshd running there? try: ssh -p " + std::to_string(port_) + " " + host_ + " true");
  }
  fail(LinkFailure::kUnreachable, "connect to " + failures_,
       "is " + host_ + " switched on, and does a firewall let " + typed + " through?");
}

void TcpDial::finish() {
  boost::system::error_code error;
  Dialled dialled;
  dialled.peer_address = numeric_address(socket_.remote_endpoint(error).address());
  dialled.local_address = numeric_address(socket_.local_endpoint(error).address());
  dialled.fd = socket_.release(error);
  set_socket_options(dialled.fd);
  const auto connected = std::move(handlers_.connected);
  cancel();
  connected(dialled);
}

void TcpDial::fail(LinkFailure failure, const std::string& message, const std::string& fix) {
  const auto failed = std::move(handlers_.failed);
  cancel();
  failed(LinkDown{failure, message, fix});
}

void TcpDial::set_timer(std::chrono::milliseconds limit, std::function<void()> expired) {
  timer_.expires_after(limit);
  timer_.async_wait([self = shared_from_this(),
                     expired = std::move(expired)](const boost::system::error_code& error) {
    if (!error && !self->over_) expired();
  });
}

}  // namespace ivy
