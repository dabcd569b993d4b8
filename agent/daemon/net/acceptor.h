// SPDX-License-Identifier: Apache-2.0
// Listening sockets that pass connections on to gRPC. gRPC 1.51's own listener never accepts again
// once descriptors have run out, and lets a silent peer hold a connection; this one recovers, and
// passes on only connections that meet a condition:
//
//   TLS        a complete TLS 1.3 ClientHello within the deadline (tls_detection.h)
//   plaintext  loopback addresses only, and only with --insecure-loopback
//   Unix       our own user and root only, by SO_PEERCRED
//
// Whether the peer may call is decided later, by its certificate (agent_credentials.h,
// authorization.h). handshake_limiter.h limits how many handshakes are under way.
//
// Rejected connections are closed, each with one line in the log. A connection is also rejected if
// its descriptor is within the margin of RLIMIT_NOFILE, so that running jobs can still open files.
//
// Thread: the loop's. Lifetime: the loop, gRPC's intake and HandshakeLimiter must outlive an
// Acceptor, whose destructor closes the listener.
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
  // Descriptors reserved for other uses: those directly below RLIMIT_NOFILE. At most a quarter of
  // that limit.
  int descriptor_margin = 64;
};

// The connections that acceptors have handed to gRPC, for HandshakeLimiter. Thread: any.
class TcpConnections final : public HandedConnections {
 public:
  // Returns true if the descriptor is a socket that is connected to `peer` ("10.0.0.1:41234").
  bool is_open(const std::string& peer, int descriptor) override;
  // Shuts the connection down and logs it, unless the descriptor is another connection by now.
  void shut_down(const std::string& peer, int descriptor) override;
};

class Acceptor {
 public:
  // Hands a connected socket, non-blocking and close-on-exec, over to gRPC.
  using Intake = grpc::experimental::ExternalConnectionAcceptor;

  // `address` is numeric, IPv4 or IPv6; an IPv6 socket does not accept IPv4 connections. Port 0
  // chooses a free port. Fails with AlreadyExists if another program listens there, and with
  // Unavailable if no interface has this address (yet).
  static Result<std::unique_ptr<Acceptor>> listen_tls(boost::asio::io_context& loop,
                                                      const std::string& address,
                                                      std::uint16_t port,
                                                      HandshakeLimiter& handshakes,
                                                      AcceptorLimits limits, Intake& intake);
  // Fails with InvalidArgument unless it is a loopback address; otherwise as listen_tls().
  static Result<std::unique_ptr<Acceptor>> listen_plaintext(boost::asio::io_context& loop,
                                                            const std::string& address,
                                                            std::uint16_t port,
                                                            AcceptorLimits limits, Intake& intake);
  // Creates the directory (0700) if only its last component is missing; rejects one that other
  // users can enter. Removes a socket that an earlier agent left; fails with AlreadyExists if a
  // running program serves it. A lock file next to the socket remains.
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
