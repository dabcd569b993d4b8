// SPDX-License-Identifier: Apache-2.0
// A link that tries the transports to one host in order, until one is up or fails in a way that
// rules out the next one. Thread: the loop's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"

namespace ivy {

class AutoLink : public HostLink, public HostLinkEvents {
 public:
  // transports: kAgent and kSsh, in the order in which they are tried; at least one.
  AutoLink(std::shared_ptr<TransportContext> context, Host host, std::vector<Transport> transports,
           HostLinkEvents& owner);
  ~AutoLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { link_->send_alive(frame); }
  void close() override;

 protected:
  // Makes a link by this transport, which is not open yet. The AutoLink is its owner.
  virtual std::unique_ptr<HostLink> make_link_by(Transport transport) = 0;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const std::vector<Transport> transports_;

 private:
  // HostLinkEvents of the present transport's link.
  void link_up(HostLink& link, const LinkUp& up) override;
  void link_bytes(HostLink&, std::string_view bytes) override { owner_.link_bytes(*this, bytes); }
  void link_drained(HostLink&) override { owner_.link_drained(*this); }
  void link_down(HostLink& link, const LinkDown& down) override;
  void link_progress(HostLink&, const LinkStep& step) override {
    owner_.link_progress(*this, step);
  }
  void link_stuck(HostLink&, const std::string& what) override { owner_.link_stuck(*this, what); }

  void try_transport();
  RemoteText earlier_reasons(const RemoteText& last) const;

  HostLinkEvents& owner_;
  OpenRequest request_;
  std::size_t current_ = 0;  // The present transport, as an index of transports_.
  std::unique_ptr<HostLink> link_;
  bool is_up_ = false;
  // The names of the transports that have failed, and their failures.
  std::vector<std::pair<std::string, RemoteText>> failed_before_;
  RemoteText note_;  // Printed once a link of another kind is up.
};

// True if SSH may succeed after an agent has failed to open the job. SSH does not bypass an agent
// that has rejected the job itself.
bool agent_may_be_passed_over(const LinkDown& down);

}  // namespace ivy
