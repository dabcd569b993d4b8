// SPDX-License-Identifier: Apache-2.0
// Sends the bundle to an agent that lacks it. Thread: the loop's. Lifetime: may be destroyed at any
// time except inside its handlers; that cancels the transfer.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/node_upload.h"
#include "launcher/streams/loop_gate.h"

namespace ivy {

class AgentPut {
 public:
  struct Handlers {
    // The text of UploadProgress, when it has changed.
    std::function<void(const std::string& progress)> moved;
    // Called exactly once, unless this object is destroyed before.
    std::function<void(const AgentStatus&)> ended;
  };
  // name: NodeUpload::name(), under which the agent's cache keeps the bundle.
  AgentPut(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
           const std::string& name, const std::string& architecture, const NodeBundle& bundle,
           Handlers handlers);
  ~AgentPut();
  AgentPut(const AgentPut&) = delete;
  AgentPut& operator=(const AgentPut&) = delete;

 private:
  class Call;
  const std::shared_ptr<LoopGate> gate_;
  const std::shared_ptr<Call> call_;
};

}  // namespace ivy
