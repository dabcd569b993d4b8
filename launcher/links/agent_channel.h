// A gRPC channel to one agent: how it is secured, kept alive and bounded, and what the handshake
// found out about the agent's certificate. gRPC wakes up with the first channel of the process and
// not before; its own log lines become our debug lines.
//
// What is enforced where (gRPC 1.51): the handshake proves that the agent has the key of the
// certificate that it shows, and shows ours. Whether that certificate is to be believed is decided
// by check_agent() alone, inside the handshake and before any byte of a call leaves: gRPC's own
// checks of chain and host name are off, since they give no reasons.
//
// Thread: any. Lifetime: shared by its calls; a channel per host and dial, nothing is pooled.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/links/agent_identity.h"

namespace ivy {

class AgentChannel {
 public:
  // asked: the host as the user typed it, which the certificate must name. address: numeric.
  static std::shared_ptr<AgentChannel> over_tls(const AgentIdentity& us, const std::string& asked,
                                                const std::string& address, std::uint16_t port);
  // This host's own agent; find_agent_socket() has looked at the path.
  static std::shared_ptr<AgentChannel> over_unix(const std::string& path);

  const std::shared_ptr<grpc::Channel>& grpc() const { return channel_; }
  // The handshake is done: the agent answers, whatever it may still say.
  bool is_connected() const;
  // Why the agent's certificate was refused; nothing when it was not.
  std::optional<Error> refusal() const;
  // The agent's certificate was seen and is good: what goes wrong then is about ours.
  bool believes() const;

 private:
  class Verifier;
  // What the verifier, on gRPC's threads, leaves for us.
  struct Verdict {
    std::mutex mutex;
    std::optional<Error> refusal;
    bool believes = false;
  };

  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Verdict> verdict_ = std::make_shared<Verdict>();
};

}  // namespace ivy
