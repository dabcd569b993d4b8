// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/tcp_dial.h"

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>

#include "proto/os/socket_options.h"

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

// The session over this connection has its own heartbeats. Keepalive only ends a connection to a
// host that has disappeared after a minute instead of hours.
void set_socket_options(int fd) {
  disable_nagle(fd);
  keep_alive(fd, {.idle_s = 15, .interval_s = 5, .probes = 4});
  set_user_timeout(fd, 60'000);
}

Dialled connected(tcp::socket& socket) {
  boost::system::error_code error;
  Dialled dialled;
  dialled.peer_address = numeric_address(socket.remote_endpoint(error).address());
  dialled.local_address = numeric_address(socket.local_endpoint(error).address());
  dialled.socket.reset(socket.release(error));
  set_socket_options(dialled.socket.get());
  return dialled;
}

Dialled not_connected(const LinkDown& down) {
  Dialled dialled;
  dialled.failed = down;
  return dialled;
}

// failures: the error of each address.
LinkDown failure_of_all(const std::string& host, std::uint16_t port, bool is_refused,
                        const std::string& failures) {
  const std::string message = "connect to " + failures;
  if (is_refused) {
    return LinkDown{
        LinkFailure::kRefused, message,
        "check that sshd runs there; try: ssh -p " + std::to_string(port) + " " + host + " true"};
  }
  return LinkDown{LinkFailure::kUnreachable, message,
                  "is " + host + " switched on, and does a firewall let " + host + " port " +
                      std::to_string(port) + " through?"};
}

}  // namespace

Awaitable<Dialled> dial_tcp(Sequence& sequence, asio::thread_pool& resolvers, std::string host,
                            std::uint16_t port, DialLimits limits) {
  const Result<Addresses> addresses = co_await addresses_of(sequence, resolvers, host);
  if (!addresses.ok())
    co_return not_connected(LinkDown::from(LinkFailure::kUnresolved, addresses.error()));
  bool is_refused = false;
  bool has_no_route = false;
  std::string failures;
  for (const std::string& address : *addresses) {
    tcp::socket socket(sequence.loop());
    const auto connect = [&](const Arrival<boost::system::error_code>& arrive) {
      socket.async_connect(tcp::endpoint(asio::ip::make_address(address), port), arrive);
    };
    const bool is_last = &address == &addresses->back();
    const auto result = co_await sequence.wait_at_most<boost::system::error_code>(
        is_last ? limits.connect : limits.connect_of_many, connect);
    if (result && !*result) co_return connected(socket);
    is_refused = is_refused || result == asio::error::connection_refused;
    has_no_route = has_no_route || result == asio::error::host_unreachable;
    failures += (failures.empty() ? "" : "; ") + address + " port " + std::to_string(port) + ": " +
                (result ? result->message() : "no answer");
  }
  Dialled dialled = not_connected(failure_of_all(host, port, is_refused, failures));
  dialled.has_no_route = has_no_route;
  co_return dialled;
}

}  // namespace ivy
