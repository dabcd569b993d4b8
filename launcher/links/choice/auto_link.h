// SPDX-License-Identifier: Apache-2.0
// Tries several transports to one host in their order until one comes up. Each LinkWay decides
// after which of its failures the next one is tried. Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"

namespace ivy {

// One transport to a host, not yet opened.
struct LinkWay {
  std::string name;  // For messages: "its agent", "ssh".
  Transport kind = Transport::kSsh;
  std::function<std::unique_ptr<HostLink>(HostLinkEvents& owner)> make;
  // True if the next way may succeed after this failure. Not called for the last way.
  std::function<bool(const LinkDown&)> may_go_on;
};

class AutoLink : public HostLink, private HostLinkEvents {
 public:
  // Tries `ways` in their order; there is at least one.
  AutoLink(std::shared_ptr<TransportContext> context, Host host, std::vector<LinkWay> ways,
           HostLinkEvents& owner);
  ~AutoLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { link_->send_alive(frame); }
  void close() override;

 private:
  // HostLinkEvents, of the present way.
  void link_up(HostLink& way, const LinkUp& up) override;
  void link_bytes(HostLink&, std::string_view bytes) override { owner_.link_bytes(*this, bytes); }
  void link_drained(HostLink&) override { owner_.link_drained(*this); }
  void link_down(HostLink& way, const LinkDown& down) override;
  void link_progress(HostLink&, const RemoteText& step) override {
    owner_.link_progress(*this, step);
  }
  void link_stuck(HostLink&, const std::string& what) override { owner_.link_stuck(*this, what); }

  void take_way();
  RemoteText earlier_reasons(const RemoteText& last) const;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const std::vector<LinkWay> ways_;
  HostLinkEvents& owner_;
  OpenRequest request_;
  std::size_t current_ = 0;
  std::unique_ptr<HostLink> link_;
  bool is_up_ = false;
  // Names of earlier ways, and their failures.
  std::vector<std::pair<std::string, RemoteText>> failed_before_;
  RemoteText note_;  // Printed after another kind of transport has connected.
};

// True if SSH may succeed after an agent has failed to open the job. An agent that has rejected the
// job itself is not bypassed.
bool agent_may_be_passed_over(const LinkDown& down);

}  // namespace ivy
