// SPDX-License-Identifier: Apache-2.0
// The transport over SSH with libssh, in the loop. If libssh cannot serve a host, the OpenSSH
// client carries the same bytes from then on.
//
//   place among the handshakes ─ what the configuration says ─ dial ─ handshake ─ host key
//   (─ question) ─ log in ─ channel ─ command ─ remote_entry (─ upload) ─ up
//
// Thread: the loop's. Blocking steps (known_hosts, key files, the SSH agent) run on the pool of the
// TransportContext, each step with a deadline and a name.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "launcher/links/sequenced_link.h"
#include "launcher/links/ssh/host_key_question.h"
#include "launcher/links/ssh/ssh_relay.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/links/ssh/ssh_state.h"
#include "launcher/links/ssh/ssh_wire.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"

namespace ivy {

class SshLink : public SequencedLink, private HostLinkEvents {
 public:
  // attempt: 0 for the first dial; a redial is not retried here, its owner dials again.
  SshLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner, int attempt);
  ~SshLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override;

 private:
  struct End {
    LinkDown down;
    int worth_tries = 1;            // As often as this it is tried before the link is down.
    std::string client_because;     // Not empty: the OpenSSH client may do what libssh cannot.
    std::chrono::seconds pause{0};  // The least time before the next try.
  };
  using MaybeEnd = std::optional<End>;

  SshState& ssh() const { return *context_->part<SshState>(); }
  Awaitable<void> run();
  Awaitable<End> try_once();
  Awaitable<MaybeEnd> dial();
  Awaitable<MaybeEnd> read_welcome();
  Awaitable<MaybeEnd> shake_hands();
  Awaitable<MaybeEnd> check_host_key();
  Awaitable<MaybeEnd> log_in();
  Awaitable<MaybeEnd> try_agent();
  template <class Step>
  Awaitable<MaybeEnd> take(std::string name, Step step, End (SshLink::*why_failed)());
  Awaitable<bool> is_trusted_by_user(SshHostKey key);
  Awaitable<End> carry();

  End handshake_failure();
  End login_failure();
  End agent_failure();
  End command_failure();
  End connection_end();
  End silence();
  End shell_silence();
  End penalty();
  End host_key_end(const SshHostKey& key);
  // HostLinkEvents, of the OpenSSH client.
  void link_up(HostLink& client, const LinkUp& up) override;
  void link_bytes(HostLink&, std::string_view bytes) override { reports_.bytes(bytes); }
  void link_drained(HostLink&) override { reports_.drained(); }
  void link_down(HostLink& client, const LinkDown& down) override;
  void link_progress(HostLink&, const RemoteText& step) override { reports_.progress(step); }
  void link_stuck(HostLink&, const std::string& what) override { reports_.stuck(what); }

  // Once libssh has failed to log in.
  void try_client(const std::string& because);
  void start_client();
  // Reports what the host waits for, while it does not get on, until the link is up or down.
  void expect(std::string what);
  void report_stuck();
  void disconnect();
  void release() override;
  // The host for messages: "node7 (10.0.0.7) port 22".
  std::string where() const;
  LinkDown nameless_user() const;
  // The command by which users see the trouble.
  std::string ssh_command() const;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const int attempt_;
  SshTarget target_;
  Slots::Ticket place_;
  SshWire wire_;
  std::string welcome_;     // A line that the server sent in place of its SSH banner.
  std::string agent_mute_;  // Not empty: the SSH agent does not answer, in words.
  SshTarget::Login login_;
  LinkUp up_;
  std::shared_ptr<HostKeyQuestion> question_;
  boost::asio::steady_timer stuck_timer_;
  std::string expected_;  // Of the host, which has answered: what report_stuck() names.
  std::optional<SshRelay> relay_;
  std::unique_ptr<HostLink> client_;  // Carries the bytes instead of libssh.
  std::string libssh_failure_;        // Not empty: libssh was tried before the client.
};

}  // namespace ivy
