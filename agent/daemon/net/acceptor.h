// SPDX-License-Identifier: Apache-2.0
// Listening sockets that pass connections on to gRPC. gRPC 1.51's own listener never accepts again
// once descriptors have run out, and lets a silent peer hold a connection; this one recovers, and
// passes on only connections that fulfil a condition:
//
//   TLS        a complete TLS 1.3 ClientHello within the deadline (tls_detection.h)
//   plaintext  loopback addresses only, and only with --insecure-loopback
//   Unix       our own user and root only, by SO_PEERCRED
//
// Whether the peer may call is decided later, by its certificate (agent_credentials.h,
// authorization.h). handshake_limiter.h limits how many handshakes are under way.
//
// Rejected connections are closed, each with one line in the log. A connection is also rejected if
// its descriptor is within the margin of RLIMIT_NOFILE, so that running jobs keep room.
//
// Thread: the loop's. Lifetime: outlived by loop, gRPC's intake and HandshakeLimiter; its
// destructor closes the listeners.
#pragma once

#include <grpcpp/server_builder.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
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

// The connections that acceptors have handed to gRPC, for HandshakeLimiter. Thread: any.
class TcpConnections final : public HandedConnections {
 public:
  bool is_open(const std::string& peer, int descriptor) override;
  void shut_down(const std::string& peer, int descriptor) override;
};

class Acceptor {
 public:
  // Hands a connected socket, non-blocking and close-on-exec, over to gRPC.
  using Intake = grpc::experimental::ExternalConnectionAcceptor;

  // `address` is numeric, IPv4 or IPv6; an IPv6 socket takes no IPv4. Port 0 picks one.
  // AlreadyExists: another program listens there. Unavailable: no interface has this address (yet).
  static Result<std::unique_ptr<Acceptor>> listen_tls(boost::asio::io_context& loop,
                                                      const std::string& address,
                                                      std::uint16_t port,
                                                      HandshakeLimiter& handshakes,
                                                      AcceptorLimits limits, Intake& intake);
  // InvalidArgument unless the address is a loopback's.
  static Result<std::unique_ptr<Acceptor>> listen_plaintext(boost::asio::io_context& loop,
                                                            const std::string& address,
                                                            std::uint16_t port,
                                                            AcceptorLimits limits, Intake& intake);
  // Creates the directory (0700) if only its last component is missing; rejects one that other
  // users can enter. Removes a socket that a dead agent left; AlreadyExists if a running program
  // serves it. A lock file next to the socket remains.
  static Result<std::unique_ptr<Acceptor>> listen_unix(boost::asio::io_context& loop,
                                                       const std::string& path,
                                                       AcceptorLimits limits, Intake& intake);

  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // "10.0.0.1:7411", "[::]:7411" or the path of the socket.
  const std::string& address() const;
  // Port of a TCP socket; 0 otherwise.
  std::uint16_t port() const;

 private:
  class Listener;  // Shared with its pending waits.
  explicit Acceptor(std::shared_ptr<Listener> listener);
  std::shared_ptr<Listener> listener_;
};

}  // namespace ivy
