// SPDX-License-Identifier: Apache-2.0
// The link to a host that dials back (dial_back_hosts.h): waits for the host's connection, then
// moves bytes over it. Thread: the loop's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/links/sequenced_link.h"
#include "launcher/links/srun/dial_back_hosts.h"

namespace ivy {

class DialBackLink : public SequencedLink, private StepClient, private DialBackStreamEvents {
 public:
  // host: its name in the group, such as Slurm's name for it.
  DialBackLink(boost::asio::io_context& loop, std::shared_ptr<DialBackHosts> hosts,
               std::string host, HostLinkEvents& owner);
  ~DialBackLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { stream_->write_alive(frame); }

 private:
  // StepClient
  void host_connected(std::shared_ptr<DialBackStream> stream) override;
  void host_reconnected() override { sequence_.start(end_replaced_link()); }
  void host_failed(const LinkDown& down) override { fail(down); }
  void host_progress(const LinkStep& step) override { reports_.progress(step); }
  // DialBackStreamEvents
  void stream_bytes(std::string_view bytes) override { take_relayed(greeting_, bytes); }
  void stream_drained() override {
    if (std::exchange(drained_due_, false)) reports_.drained();
  }
  void stream_ended(const std::string& why) override {
    fail(LinkDown{LinkFailure::kBroken, "its connection closed (" + why + ")", ""});
  }

  Awaitable<void> end_replaced_link();  // The host has made a new connection: ends this link.
  void release() override;

  const std::shared_ptr<DialBackHosts> hosts_;
  const std::string host_;
  std::shared_ptr<DialBackStream> stream_;
  RemoteGreeting greeting_{RemoteGreeting::Sender::kRelay};
  bool drained_due_ = false;  // drained() has to be reported.
};

}  // namespace ivy
