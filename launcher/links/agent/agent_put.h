// SPDX-License-Identifier: Apache-2.0
// Sends the bundle to an agent that lacks it, and reports the progress to the owner of the link.
// Thread: the loop's. Lifetime: may be destroyed at any time except inside a report or the last
// call; that cancels the transfer.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/host_link.h"
#include "launcher/links/node_upload.h"
#include "launcher/streams/loop_gate.h"

namespace ivy {

class AgentPut {
 public:
  // Called exactly once, unless the AgentPut is destroyed before.
  using Ended = std::function<void(const AgentStatus&)>;
  // name: NodeUpload::name(), under which the agent's cache keeps the bundle.
  AgentPut(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
           const std::string& name, const std::string& architecture, const NodeBundle& bundle,
           const LinkReports& reports, Ended ended);
  ~AgentPut();
  AgentPut(const AgentPut&) = delete;
  AgentPut& operator=(const AgentPut&) = delete;

 private:
  class Call;
  const std::shared_ptr<LoopGate> gate_;
  const std::shared_ptr<Call> call_;
};

}  // namespace ivy
