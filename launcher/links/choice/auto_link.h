// Several ways to one host, tried in their order until one comes up. Which failures of a way let
// the next one try is the way's own business. Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/links/carrier_context.h"
#include "launcher/links/host_link.h"
#include "launcher/options/hosts.h"

namespace ivy {

// One way, not yet opened.
struct LinkWay {
  std::string name;  // For messages: "its agent", "ssh".
  Carrier kind = Carrier::kSsh;
  std::function<std::unique_ptr<HostLink>(const HostLink::Handlers&)> make;
  // The next way may do better. Not asked of the last way.
  std::function<bool(const LinkDown&)> may_go_on;
  // The next way asks the same far end without a detour: what it says is better said.
  bool is_detour = false;
};

class AutoLink : public HostLink {
 public:
  // ways: at least one.
  AutoLink(std::shared_ptr<CarrierContext> context, Host host, std::vector<LinkWay> ways,
           Handlers handlers);
  ~AutoLink() override;
  AutoLink(const AutoLink&) = delete;
  AutoLink& operator=(const AutoLink&) = delete;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void close() override;

 private:
  void take_way();
  void on_down(const LinkDown& down);
  RemoteText earlier_reasons(const RemoteText& last) const;

  const std::shared_ptr<CarrierContext> context_;
  const Host host_;
  const std::vector<LinkWay> ways_;
  const Handlers handlers_;
  OpenRequest request_;
  std::size_t current_ = 0;
  std::unique_ptr<HostLink> link_;
  bool is_up_ = false;
  // Names of earlier ways, and what each said.
  std::vector<std::pair<std::string, RemoteText>> failed_before_;
  RemoteText note_;  // For when another kind of carrier has come up.
};

// After an agent has failed to open the job: may SSH (or a fresh connection) do better? Not where
// the agent has said no to the job itself.
bool agent_may_be_passed_over(const LinkDown& down);

}  // namespace ivy
