// SPDX-License-Identifier: Apache-2.0
// A gRPC channel to one agent: how it is secured, kept alive and bounded, and what the handshake
// found out about the agent's certificate. gRPC wakes up with the first channel of the process and
// not before; its own log lines become our debug lines.
//
// Over TCP it speaks through a tunnel of ours (agent_tunnel.h), which shakes hands and judges the
// agent's certificate before any byte of a call leaves.
//
// Thread: the loop's; only its end may come on another. Lifetime: shared by its calls; a channel
// per host and dial, nothing is pooled.
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
  // asked: the host as the user typed it, which the certificate must name. address: numeric.
  // Begins to dial; fails only where there cannot even be a try.
  static Result<std::shared_ptr<AgentChannel>> over_tls(TransportContext& context,
                                                        const AgentIdentity& us,
                                                        const std::string& asked,
                                                        const std::string& address,
                                                        std::uint16_t port);
  // This host's own agent; find_agent_socket() has looked at the path.
  static std::shared_ptr<AgentChannel> over_unix(const std::string& path);

  const std::shared_ptr<grpc::Channel>& grpc() const { return channel_; }
  // The agent has answered, whatever it may still say.
  bool is_connected() const;
  // Returns the reason if the agent's certificate was rejected.
  std::optional<Error> refusal() const;
  // The agent's certificate was seen and is good: what goes wrong then is about ours.
  bool believes() const;
  // How a call ended: where there never was a connection gRPC does not know why.
  AgentStatus explain(AgentStatus status) const;
  // Ends the attempt to connect if it has not succeeded yet. The context must still live.
  void give_up();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<AgentTunnels::Dialled> dialled_;  // Nothing: over a Unix socket.
};

// Shared by all links by agents of one job.
struct AgentConnections {
  explicit AgentConnections(TransportContext&) {}
  std::shared_ptr<AgentChannel> to_this_host;  // One channel to this host's own agent for all.
  std::shared_ptr<AgentTunnels> tunnels;       // All connections to agents that we dial.
};

}  // namespace ivy
