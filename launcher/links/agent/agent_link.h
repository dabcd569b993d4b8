// SPDX-License-Identifier: Apache-2.0
// The link through a host's agent: one gRPC stream to the supervisor.
//
//   direct     name ─ addresses ─ TLS with each in turn ─ Open (─ need ─ Put ─ Open) ─ up
//   own host   the Unix socket of this host's agent ─ Open ─ up
//
// Thread: the loop's, except for send_alive().
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/links/address_lookup.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/agent/agent_stream.h"
#include "launcher/links/agent_transport.h"
#include "launcher/links/sequenced_link.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"

namespace ivy {

class AgentChannel;
class AgentPut;

class AgentLink : public SequencedLink, public AgentStreamEvents {
 public:
  using Route = AgentRoute;
  // answer: how long the agent may take to answer (agent_transport.h).
  AgentLink(std::shared_ptr<TransportContext> context, Host host, Route route,
            std::chrono::milliseconds answer, HostLinkEvents& owner);
  ~AgentLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override;

 private:
  // Awaits connect(), which has the order of the diagram above, and reports the end of the link.
  Awaitable<void> run();
  Awaitable<LinkDown> connect();
  Awaitable<LinkDown> try_addresses(Addresses addresses);
  Awaitable<LinkDown> open_job();
  // Waits for the end of the stream.
  Awaitable<AgentStatus> stream_end();
  Awaitable<std::optional<AgentStatus>> first_answer();
  Awaitable<std::optional<LinkDown>> send_bundle(std::string architecture, bool& is_busy);
  Awaitable<AgentStatus> put(std::string architecture, NodeBundle bundle);

  // Reads the user's identity, or finds this host's socket.
  Result<void> prepare();
  Result<void> dial(const std::string& address);
  Result<void> start_stream();
  // AgentStreamEvents
  void stream_opened(const agent::v1::Opened& opened) override;
  void stream_bytes(const std::string& bytes) override;
  void stream_drained() override { reports_.drained(); }
  void stream_ended(const AgentStatus& status) override { stream_event_(status); }
  void leave_stream();
  AgentEndpoint endpoint() const;
  // Returns a step with the advice to look at the agent.
  LinkStep agent_step(RemoteText text) const;
  void release() override;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const Route route_;
  const std::chrono::milliseconds answer_limit_;
  // The user's identity, which the context owns; null over the Unix socket.
  const AgentIdentity* own_identity_ = nullptr;
  Slots::Ticket handshake_slot_;  // Held until the job is open.
  AgentEndpoint endpoint_;
  std::string bundle_name_;
  bool has_other_addresses_ = false;  // There are more addresses to try after this one.
  std::shared_ptr<AgentChannel> channel_;
  std::mutex stream_mutex_;  // Held while a stream is destroyed, and while a heartbeat uses it.
  std::unique_ptr<AgentStream> stream_;
  // Called with nothing when the job is open, and with the status when the stream has ended.
  Arrival<std::optional<AgentStatus>> stream_event_;
  std::unique_ptr<AgentPut> put_;
  RemoteGreeting greeting_{RemoteGreeting::Sender::kRelay};
};

}  // namespace ivy
