// SPDX-License-Identifier: Apache-2.0
// The base class of links through a program on this machine (ssh, kubectl, docker), whose standard
// input and output belong to a shell on the host. carry() starts the program, talks to the shell
// (remote_entry.h), and moves bytes until the program's output ends. Thread: the loop's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/links/sequenced_link.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"
#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"

namespace ivy {

class CommandLink : public SequencedLink, public DescriptorPumpEvents {
 public:
  ~CommandLink() override;

  void open(const OpenRequest& request) final;
  void write(std::string bytes) final;
  void send_alive(std::string_view frame) final { pump_->write_alive(frame); }

 protected:
  CommandLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner);

  // The steps of the link: acquires slot_, sets up_, and ends with carry().
  virtual Awaitable<void> run() = 0;
  // Starts the program, writes `input` to it, and reports every event of the link until it is down.
  Awaitable<void> carry(const ChildRequest& request, const std::string& input);

  // The failure if the program cannot be started.
  virtual LinkDown start_failure(const Error& error) const = 0;
  // The failure if the program makes no progress for kEntryTimeout before the relay runs.
  virtual LinkDown entry_timeout() const = 0;
  // The failure if the program's output has ended, before or after the link was up.
  virtual LinkDown end_reason() const = 0;
  // A step to show if the shell has not greeted after some seconds without progress; empty: none.
  virtual LinkStep delayed_step() const = 0;

  bool was_up() const { return entry_->is_up(); }
  // True if the shell has run ivyrun's command, and perhaps receives ivy-node.
  bool has_greeted() const { return has_greeted_; }
  // True if the program has printed anything.
  bool has_printed() const { return has_received_ || !error_text_.empty(); }
  // The program's exit status; empty while it is running.
  const std::optional<ExitStatus>& exit_status() const { return process_->ended(); }
  // The last output on the program's standard error: until the link is up, then from then on.
  const std::string& error_text() const { return error_text_; }
  // The last output before the relay's that was not ivyrun's.
  const std::string& noise() const { return entry_->noise(); }

  // Time without progress that is allowed from the start of the program until the relay runs; it
  // includes logins through several jump hosts.
  static constexpr std::chrono::seconds kEntryTimeout{90};

  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  Slots::Ticket slot_;
  LinkUp up_;

 private:
  Result<void> start_program(ChildRequest request, const std::string& input);
  Awaitable<bool> enter_relay();  // Waits until the relay has started.
  Awaitable<void> await_end();    // Waits for the program's exit.
  // DescriptorPumpEvents
  void pump_bytes(DescriptorPump& pump, std::string_view bytes) override;
  void pump_drained(DescriptorPump&) override {
    if (std::exchange(drained_due_, false)) reports_.drained();
  }
  void pump_ended(DescriptorPump& pump, const std::string& why) override;
  void take(std::string_view bytes);
  void enter(const RemoteEntry::Actions& actions);
  void release() override;

  std::optional<RemoteEntry> entry_;
  std::shared_ptr<ChildProcess> process_;
  std::shared_ptr<DescriptorPump> pump_;
  std::shared_ptr<DescriptorPump> error_pump_;
  std::string error_text_;
  bool has_received_relay_ = false;  // Bytes of the relay have arrived.
  bool has_greeted_ = false;
  bool has_received_ = false;  // Any bytes have arrived.
  bool drained_due_ = false;   // drained() has to be reported.
  bool output_ended_ = false;
  std::uint64_t moved_at_ns_ = 0;  // When the program last made progress.
  Arrival<bool> wake_;             // Called when the link is up, or when the output has ended.
};

}  // namespace ivy
