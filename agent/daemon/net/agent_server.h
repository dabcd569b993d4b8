// SPDX-License-Identifier: Apache-2.0
// The gRPC server of the agent: one service, three kinds of listeners, limits and keepalive. gRPC
// opens no socket of its own.
//
// Thread: start, stop_accepting and destruction on the loop's. shut_down blocks: call it on another
// thread while the loop runs on, because calls end there. Lifetime: loop, service, credentials and
// HandshakeLimiter must outlive it.
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/daemon/net/acceptor.h"
#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/listen_address.h"
#include "proto/contract/status.h"

namespace ivy {

struct AgentServerOptions {
  std::string socket_path;
  std::vector<ListenAddress> listen;               // The addresses served with TLS.
  std::optional<std::uint16_t> insecure_loopback;  // Without TLS, on 127.0.0.1 and ::1.
  AcceptorLimits limits;
};

class AgentServer {
 public:
  // `credentials` may be null when `listen` is empty.
  static Result<std::unique_ptr<AgentServer>> start(boost::asio::io_context& loop,
                                                    grpc::Service& service,
                                                    const AgentCredentials* credentials,
                                                    HandshakeLimiter& handshakes,
                                                    const AgentServerOptions& options);
  ~AgentServer();

  // "/run/ivyrun-alice/agent.sock", "[::]:7411": for the log.
  std::vector<std::string> addresses() const;
  // Port of the first TCP listener; 0 without one.
  std::uint16_t port() const;

  void stop_accepting();
  // Calls that have not ended after `timeout` are cancelled.
  void shut_down(std::chrono::milliseconds timeout);

 private:
  AgentServer(boost::asio::io_context& loop, HandshakeLimiter& handshakes, AcceptorLimits limits)
      : loop_(loop), handshakes_(handshakes), limits_(limits) {}
  Result<void> listen(const AgentServerOptions& options);
  Result<void> listen_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
                          bool with_tls);

  boost::asio::io_context& loop_;
  HandshakeLimiter& handshakes_;
  const AcceptorLimits limits_;
  std::unique_ptr<Acceptor::Intake> tls_intake_;
  std::unique_ptr<Acceptor::Intake> plain_intake_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
};

}  // namespace ivy
