// SPDX-License-Identifier: Apache-2.0
// A link that tries several transports to one host in order, until one is up. After a failure, the
// transport's TransportCandidate decides whether the next one is tried. Thread: the loop's.
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

// One transport to the host, whose link has not been made yet.
struct TransportCandidate {
  std::string name;  // Its name in messages: "its agent", "ssh".
  Transport kind = Transport::kSsh;
  std::function<std::unique_ptr<HostLink>(HostLinkEvents& owner)> make;
  // Returns whether the next transport may succeed after this failure. Not called for the last one.
  std::function<bool(const LinkDown&)> may_try_next;
};

class AutoLink : public HostLink, private HostLinkEvents {
 public:
  // ways: in the order in which they are tried; at least one.
  AutoLink(std::shared_ptr<TransportContext> context, Host host,
           std::vector<TransportCandidate> candidates, HostLinkEvents& owner);
  ~AutoLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { link_->send_alive(frame); }
  void close() override;

 private:
  // HostLinkEvents of the present transport's link.
  void link_up(HostLink& link, const LinkUp& up) override;
  void link_bytes(HostLink&, std::string_view bytes) override { owner_.link_bytes(*this, bytes); }
  void link_drained(HostLink&) override { owner_.link_drained(*this); }
  void link_down(HostLink& link, const LinkDown& down) override;
  void link_progress(HostLink&, const RemoteText& step) override {
    owner_.link_progress(*this, step);
  }
  void link_stuck(HostLink&, const std::string& what) override { owner_.link_stuck(*this, what); }

  void open_candidate();
  RemoteText earlier_reasons(const RemoteText& last) const;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const std::vector<TransportCandidate> candidates_;
  HostLinkEvents& owner_;
  OpenRequest request_;
  std::size_t current_ = 0;  // The present transport, as an index of candidates_.
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
