// SPDX-License-Identifier: Apache-2.0
// The link to a host that dials back (dial_back_hosts.h): waits for the host's connection, then
// moves bytes over it. Thread: the loop's.
#pragma once

#include <memory>
#include <string>

#include "launcher/links/sequenced_link.h"
#include "launcher/links/srun/dial_back_hosts.h"

namespace ivy {

class DialBackLink : public SequencedLink {
 public:
  // host: its name in the group, such as Slurm's name for it.
  DialBackLink(boost::asio::io_context& loop, std::shared_ptr<DialBackHosts> hosts,
               std::string host, HostLinkEvents& owner);
  ~DialBackLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { stream_->write_alive(frame); }

 private:
  void serve(std::shared_ptr<DialBackStream> stream);
  Awaitable<void> end_replaced_link();  // The host has made a new connection: ends this link.
  void release() override;

  const std::shared_ptr<DialBackHosts> hosts_;
  const std::string host_;
  StepClient client_;
  std::shared_ptr<DialBackStream> stream_;
  RemoteGreeting greeting_{RemoteGreeting::Speaker::kRelay};
  bool owes_drained_ = false;  // drained() has to be reported.
};

}  // namespace ivy
