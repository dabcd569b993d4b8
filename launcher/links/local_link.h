// SPDX-License-Identifier: Apache-2.0
// The link to this host and to simulated hosts: a socket pair, whose other end the supervisor
// inherits from its warden as descriptor 3. If the connection ends, the supervisor has exited, so
// the link is never redialled. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "launcher/links/node_program.h"
#include "launcher/links/sequenced_link.h"
#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"

namespace ivy {

class LocalLink : public SequencedLink, public DescriptorPumpEvents {
 public:
  LocalLink(boost::asio::io_context& loop, NodeProgram node, HostLinkEvents& owner);
  ~LocalLink() override;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void send_alive(std::string_view frame) override { pump_->write_alive(frame); }

 private:
  void make_pump(Descriptor our_end);
  // Makes the socket pair, and returns the end that the child inherits.
  Result<Descriptor> make_pair();
  Result<void> start_warden();
  // Starts a relay to the running supervisor, after a takeover.
  Result<void> start_relay();
  Result<void> start(ChildRequest child);
  Awaitable<void> begin(Result<void> started);
  // DescriptorPumpEvents
  void pump_bytes(DescriptorPump&, std::string_view bytes) override {
    take_relayed(greeting_, bytes);
  }
  void pump_drained(DescriptorPump&) override { reports_.drained(); }
  void pump_ended(DescriptorPump&, const std::string& why) override { fail(broken(why)); }
  void release() override;
  LinkDown broken(const std::string& why);

  const NodeProgram node_;
  std::shared_ptr<DescriptorPump> pump_;
  std::shared_ptr<ChildProcess> warden_;
  RemoteGreeting greeting_{RemoteGreeting::Sender::kRelay};
};

}  // namespace ivy
