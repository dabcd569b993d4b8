// The carrier by a host's agent: one gRPC stream to the supervisor.
//
//   direct     name ─ addresses ─ TLS with each in turn ─ Open (─ need ─ Put ─ Open) ─ up
//   own host   the Unix socket of this host's agent ─ Open ─ up
//   kept       the same socket; our agent carries the stream on over a connection that it keeps
//
// Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/agent_carrier.h"
#include "launcher/links/carrier_context.h"
#include "launcher/links/host_link.h"
#include "launcher/links/remote_greeting.h"
#include "launcher/options/hosts.h"

namespace ivy {

class AddressLookup;
class AgentChannel;
class AgentPut;
class AgentStream;
struct AgentIdentity;

namespace agent::v1 {
class Opened;
}

class AgentLink : public HostLink {
 public:
  using Way = AgentWay;
  // answer: as in agent_carrier.h.
  AgentLink(std::shared_ptr<CarrierContext> context, Host host, Way way,
            std::chrono::milliseconds answer, Handlers handlers);
  ~AgentLink() override;
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void close() override;

 private:
  Result<void> prepare();
  void look_up();
  void next_address();
  void open_stream();
  void on_opened(const agent::v1::Opened& opened);
  void on_data(std::string bytes);
  void on_ended(const AgentStatus& status);
  void put(const std::string& architecture);
  void on_put(const AgentStatus& status);
  void open_again();
  void watch_answer();
  void no_answer();
  void leave_stream();
  void fail(LinkDown down);
  AgentPlace place() const;
  void post(std::function<void()> action);

  const std::shared_ptr<CarrierContext> context_;
  const Host host_;
  const Way way_;
  const std::chrono::milliseconds answer_limit_;
  Handlers handlers_;
  OpenRequest request_;
  const AgentIdentity* us_ = nullptr;  // Owned by the context; null on our own host.
  std::shared_ptr<AddressLookup> lookup_;
  std::vector<std::string> addresses_;
  std::size_t next_ = 0;
  AgentPlace place_;
  std::vector<LinkDown> failures_;  // One for each address that was tried.
  std::shared_ptr<AgentChannel> channel_;
  std::unique_ptr<AgentStream> stream_;
  std::unique_ptr<AgentPut> put_;
  bool has_put_ = false;
  int crowded_puts_ = 0;     // How often the agent had too many bundles coming in to take ours.
  bool is_patient_ = false;  // It has shaken hands and is waited for.
  boost::asio::steady_timer timer_;
  Slots::Ticket place_among_handshakes_;
  RemoteGreeting greeting_{RemoteGreeting::Speaker::kRelay};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
