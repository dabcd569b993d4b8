// SPDX-License-Identifier: Apache-2.0
// The link through the user's own ssh program: the same bytes on its standard input and output. ssh
// supports everything in a site's configuration, but costs a process per host. Thread: the loop's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/links/sequenced_link.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/links/ssh/ssh_state.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"
#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"

namespace ivy {

// Returns the whole argv: the words of --ssh-command, or `ssh`. A program named "ssh" also gets
// options that disable prompts and limit its waits.
std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const SshTarget& target, const std::string& config_path,
                                            const std::string& remote_command);

class SshClientLink : public SequencedLink, public DescriptorPumpEvents {
 public:
  // target: only its host name is used before open() has read the configuration.
  SshClientLink(std::shared_ptr<TransportContext> context, Host host, SshTarget target,
                HostLinkEvents& owner);
  ~SshClientLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { pump_->write_alive(frame); }

 private:
  SshState& ssh() const { return *context_->part<SshState>(); }
  Awaitable<void> run();
  Awaitable<void> bypass_silent_agent();  // Bypasses an SSH agent that does not answer.
  Awaitable<bool> enter_relay();          // Waits until the relay has started.
  Awaitable<void> await_end();            // Waits for the client's exit.
  Result<void> start_client(NodeUpload& upload);
  void start_pumps(PipedChild client);
  // DescriptorPumpEvents
  void pump_bytes(DescriptorPump& pump, std::string_view bytes) override;
  void pump_drained(DescriptorPump&) override {
    if (std::exchange(drained_due_, false)) reports_.drained();
  }
  void pump_ended(DescriptorPump& pump, const std::string& why) override;
  void take(std::string_view bytes);
  void enter(const RemoteEntry::Step& step);
  LinkDown end_reason();
  LinkDown client_failure(LinkFailure failure, const std::string& message) const;
  // Returns a command that shows to the user whether the client can log in.
  std::string test_command() const;
  void release() override;

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  SshTarget target_;
  Slots::Ticket slot_;
  LinkUp up_;
  std::optional<RemoteEntry> entry_;
  std::shared_ptr<ChildProcess> client_;  // The running ssh program.
  std::shared_ptr<DescriptorPump> pump_;
  std::shared_ptr<DescriptorPump> error_pump_;
  std::string error_text_;           // The last output on its standard error.
  std::string agent_error_;          // The error of an SSH agent that does not answer; else empty.
  bool has_received_relay_ = false;  // Bytes of the relay have arrived.
  bool has_received_ = false;        // Any bytes have arrived.
  bool drained_due_ = false;         // drained() has to be reported.
  bool output_ended_ = false;
  std::uint64_t moved_at_ns_ = 0;  // When the client last made progress.
  Arrival<bool> wake_;             // Called when the link is up, or when the output has ended.
};

}  // namespace ivy
