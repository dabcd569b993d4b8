// SPDX-License-Identifier: Apache-2.0
// Listening sockets of our own. gRPC 1.51's listener is gone for good once descriptors ran out, and
// lets a silent peer hold a connection; this one recovers, and passes on only connections that have
// been checked.
//
//   TLS        a complete TLS 1.3 ClientHello within the deadline (client_hello_check.h)
//   plaintext  loopback addresses only, and only with --insecure-loopback
//   Unix       our own user and root only, by SO_PEERCRED
//
// handshake_limiter.h limits how many handshakes are under way.
//
// Refused connections are closed, each with one line in the log. A connection whose descriptor
// comes within the margin of RLIMIT_NOFILE is refused, so that running jobs keep room.
//
// Thread: the loop's. Lifetime: outlived by loop and HandshakeLimiter; its destructor closes the
// listeners.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/daemon/net/handshake_limiter.h"
#include "proto/contract/status.h"

namespace ivy {

struct AcceptorLimits {
  std::chrono::milliseconds hello_deadline{5000};
  // Descriptors below RLIMIT_NOFILE that are kept from connections; at most a quarter of the limit.
  int descriptor_margin = 64;
};

// For HandshakeLimiter: true if this descriptor, though gRPC owns it now, is still our connection
// to `peer`.
bool is_connected_to(const std::string& peer, int descriptor);
// Shuts the connection down if it is still the one to this peer; the descriptor's owner closes it.
void shut_down_connection(const std::string& peer, int descriptor);

class Acceptor {
 public:
  // Takes over a connected socket: non-blocking, close-on-exec.
  using Deliver = std::function<void(int descriptor)>;

  // `address` is numeric, IPv4 or IPv6; an IPv6 socket takes no IPv4. Port 0 picks one.
  // AlreadyExists: another program listens there. Unavailable: no interface has this address (yet).
  static Result<std::unique_ptr<Acceptor>> listen_tls(boost::asio::io_context& loop,
                                                      const std::string& address,
                                                      std::uint16_t port,
                                                      HandshakeLimiter& handshakes,
                                                      AcceptorLimits limits, Deliver deliver);
  // InvalidArgument unless the address is a loopback's.
  static Result<std::unique_ptr<Acceptor>> listen_plaintext(boost::asio::io_context& loop,
                                                            const std::string& address,
                                                            std::uint16_t port,
                                                            AcceptorLimits limits, Deliver deliver);
  // Creates the directory (0700) if only its last component is missing; rejects one that other
  // users can enter. Removes the socket of a dead agent; AlreadyExists if a running one serves it.
  // A lock file next to the socket remains.
  static Result<std::unique_ptr<Acceptor>> listen_unix(boost::asio::io_context& loop,
                                                       const std::string& path,
                                                       AcceptorLimits limits, Deliver deliver);

  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // "10.0.0.1:7411", "[::]:7411" or the path of the socket.
  const std::string& place() const;
  // Port of a TCP socket; 0 otherwise.
  std::uint16_t port() const;

 private:
  class Listener;  // Shared with its pending waits.
  explicit Acceptor(std::shared_ptr<Listener> listener);
  std::shared_ptr<Listener> listener_;
};

}  // namespace ivy
