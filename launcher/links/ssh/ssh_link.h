// SPDX-License-Identifier: Apache-2.0
// The link over SSH with libssh. If libssh cannot serve a host, the OpenSSH client
// (ssh_client_link.h) carries the same bytes from then on. The steps:
//
//   slot among the handshakes ─ ssh configuration ─ dial ─ handshake ─ host key (─ question) ─
//   log in ─ channel ─ command ─ remote_entry (─ upload) ─ up
//
// Thread: the loop's. Steps that may block (known_hosts, key files, the SSH agent) run on the pool
// of the TransportContext, each with a deadline and a name.
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

class SshLink : public SequencedLink, private HostLinkEvents, private SshRelayEvents {
 public:
  // attempt: 0 for the first dial. A redial is tried only once here, because its owner dials again.
  SshLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner, int attempt);
  ~SshLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override;

 private:
  // How one try has ended.
  struct End {
    LinkDown down;
    int max_tries = 1;  // The link is down once this many tries were made.
    // Why the OpenSSH client may succeed where libssh did not; empty: it would not.
    std::string client_because;
    std::chrono::seconds pause{0};  // Minimum time before the next try.
  };
  using MaybeEnd = std::optional<End>;

  SshState& ssh() const { return *context_->part<SshState>(); }
  Awaitable<void> run();
  Awaitable<End> try_once();  // One try, from the dial to the end of the link.
  Awaitable<MaybeEnd> dial();
  Awaitable<MaybeEnd> read_banner();
  Awaitable<MaybeEnd> do_handshake();
  Awaitable<MaybeEnd> check_host_key();
  Awaitable<MaybeEnd> log_in();
  Awaitable<MaybeEnd> try_agent();
  // Repeats a step of libssh on the pool; a failure ends the try with why_failed().
  template <class Step>
  Awaitable<MaybeEnd> take(std::string name, Step step, End (SshLink::*why_failed)());
  Awaitable<bool> is_trusted_by_user(SshHostKey key);
  Awaitable<End> carry();  // Moves bytes until the connection ends.

  End handshake_failure();
  End login_failure();
  End agent_failure();
  End command_failure();
  End connection_end();
  End silence();
  End shell_silence();
  End throttled_failure();
  End host_key_end(const SshHostKey& key);
  // SshRelayEvents
  void relay_up() override;
  // HostLinkEvents, of the OpenSSH client.
  void link_up(HostLink& client, const LinkUp& up) override;
  void link_bytes(HostLink&, std::string_view bytes) override { reports_.bytes(bytes); }
  void link_drained(HostLink&) override { reports_.drained(); }
  void link_down(HostLink& client, const LinkDown& down) override;
  void link_progress(HostLink&, const LinkStep& step) override { reports_.progress(step); }
  void link_stuck(HostLink&, const std::string& what) override { reports_.stuck(what); }

  // Continues with the OpenSSH client, if libssh has failed in a way that the client may not.
  void try_client(const std::string& because);
  void start_client();
  // Repeatedly reports `what` as the reason why the host keeps the link waiting (link_stuck()),
  // until the link is up or down.
  void expect(std::string what);
  void report_stuck();
  void disconnect();
  void release() override;
  // Names the host in messages: "node7 (10.0.0.7) port 22".
  std::string where() const;
  LinkDown nameless_user() const;
  // Returns a step with the advice to try ssh by hand.
  LinkStep ssh_step(RemoteText text) const;
  // Returns a command that shows the problem to the user.
  std::string ssh_command() const;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const int attempt_;
  SshTarget target_;
  Slots::Ticket slot_;
  SshWire wire_;
  std::string pre_banner_line_;  // A line that the server sent instead of its SSH banner.
  std::string agent_error_;      // The error of an SSH agent that does not answer; else empty.
  SshTarget::Login login_;
  LinkUp up_;
  std::shared_ptr<HostKeyQuestion> question_;
  boost::asio::steady_timer stuck_timer_;
  std::string expected_;  // The answer that is awaited, for report_stuck().
  std::optional<SshRelay> relay_;
  std::unique_ptr<HostLink> client_;  // Set once the client carries the bytes instead of libssh.
  std::string libssh_failure_;        // Why libssh failed before the client was tried; else empty.
};

}  // namespace ivy
