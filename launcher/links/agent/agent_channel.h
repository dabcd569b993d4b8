// SPDX-License-Identifier: Apache-2.0
// A gRPC channel to one agent: how it is secured, kept alive and limited, and the result of
// verifying the agent's certificate. gRPC's threads start with the first channel of the process,
// and its log lines become debug lines.
//
// Over TCP the channel runs through a tunnel (agent_tunnel.h), which makes the TLS handshake and
// verifies the agent's certificate before any byte of a call is sent.
//
// Thread: the loop's; only the destructor may run on another. Lifetime: shared by the calls of the
// channel. Each host and each dial has a separate channel; only the channel to this host's own
// agent is shared.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/agent/agent_tunnel.h"

namespace ivy {

class TransportContext;

class AgentChannel {
 public:
  // Starts to connect. host_name: as the user typed it; the certificate must name it. address:
  // numeric. An error means that no attempt is possible.
  static Result<std::shared_ptr<AgentChannel>> over_tls(TransportContext& context,
                                                        const AgentIdentity& own_identity,
                                                        const std::string& host_name,
                                                        const std::string& address,
                                                        std::uint16_t port);
  // Connects to this host's own agent; the path is from find_agent_socket().
  static std::shared_ptr<AgentChannel> over_unix(const std::string& path);

  const std::shared_ptr<grpc::Channel>& grpc() const { return channel_; }
  // True once the agent has answered at all.
  bool is_connected() const;
  // Returns the reason if the agent's certificate was rejected.
  std::optional<Error> rejection() const;
  // True if the agent's certificate was verified. A later failure of the handshake is then about
  // this user's certificate.
  bool is_verified() const;
  // Returns the end of a call. If there never was a connection, gRPC does not know the reason, so
  // the tunnel's reason replaces gRPC's.
  AgentStatus explain(AgentStatus status) const;
  // Stops connecting, unless the connection has been made. The context must still exist.
  void give_up();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<AgentTunnels::Dialled> dialled_;  // Over TCP: the tunnel. Empty over a Unix socket.
};

// Shared by all links through agents of one job.
struct AgentConnections {
  explicit AgentConnections(TransportContext&) {}
  std::shared_ptr<AgentChannel> to_this_host;  // The channel to this host's own agent.
  std::shared_ptr<AgentTunnels> tunnels;       // The connections to the agents of other hosts.
};

}  // namespace ivy
