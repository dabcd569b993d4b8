// SPDX-License-Identifier: Apache-2.0
// Sends the bundle to an agent that lacks it. Thread: the loop's. Lifetime: may be destroyed at any
// time but inside its handler; a transfer under way is then cancelled.
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
    // The percentage that has been sent; called when it changes.
    std::function<void(const std::string& progress)> moved;
    std::function<void(const AgentStatus&)> ended;  // Called exactly once, whatever happens.
  };
  // name: the hash by which the cache knows the bundle.
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
