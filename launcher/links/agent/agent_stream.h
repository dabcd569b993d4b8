// SPDX-License-Identifier: Apache-2.0
// One Open call: bytes to and from a supervisor, through an agent. Callbacks on gRPC's threads only
// split data and post it to the loop, where everything else happens.
//
// Thread: the loop's, except for write_alive(). Lifetime: may be destroyed at any time except
// inside its handlers; the call itself ends later, within a time limit.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/streams/loop_gate.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

class AgentStream {
 public:
  struct Handlers {
    std::function<void(const agent::v1::Opened&)> opened;
    std::function<void(std::string)> data;
    std::function<void()> drained;                  // Everything given to write() has left.
    std::function<void(const AgentStatus&)> ended;  // Called once, after all others.
  };

  AgentStream(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
              const agent::v1::OpenJob& request, Handlers handlers);
  ~AgentStream();
  AgentStream(const AgentStream&) = delete;
  AgentStream& operator=(const AgentStream&) = delete;

  void write(std::string bytes);
  // Sends a heartbeat frame if no message is being written; otherwise does nothing. Thread: any.
  void write_alive(std::string_view frame);
  // Sends what was written, half-closes the call, so that the agent knows which side has closed it,
  // and lets it finish. No handler is called afterwards.
  void close();

 private:
  class Call;
  void take(agent::v1::OpenReply& reply);

  boost::asio::io_context& loop_;
  const Handlers handlers_;
  const std::shared_ptr<LoopGate> gate_;
  const std::shared_ptr<Call> call_;
};

}  // namespace ivy
