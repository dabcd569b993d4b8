// SPDX-License-Identifier: Apache-2.0
// One Open call: bytes to and from a supervisor, through an agent. Callbacks on gRPC's threads only
// split data and post it to the loop, where everything else happens.
//
// Thread: the loop's, except for write_alive(). Lifetime: may be destroyed at any time except
// inside its events; the call itself ends later, within a time limit.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/streams/loop_gate.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

// Implemented by the owner of a stream. Nothing is called after close().
class AgentStreamEvents {
 public:
  virtual void stream_opened(const agent::v1::Opened& opened) = 0;
  // `bytes` are valid until close().
  virtual void stream_bytes(const std::string& bytes) = 0;
  // Everything given to write() has left.
  virtual void stream_drained() = 0;
  // The last event.
  virtual void stream_ended(const AgentStatus& status) = 0;

 protected:
  ~AgentStreamEvents() = default;
};

class AgentStream {
 public:
  AgentStream(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
              const agent::v1::OpenJob& request, AgentStreamEvents& events);
  ~AgentStream();
  AgentStream(const AgentStream&) = delete;
  AgentStream& operator=(const AgentStream&) = delete;

  void write(std::string bytes);
  // Sends a heartbeat frame if no message is being written; otherwise does nothing. Thread: any.
  void write_alive(std::string_view frame);
  // Sends what was written, half-closes the call, so that the agent knows which side has closed it,
  // and lets it finish.
  void close();

 private:
  class Call;

  boost::asio::io_context& loop_;
  const std::shared_ptr<LoopGate> gate_;
  const std::shared_ptr<Call> call_;
};

}  // namespace ivy
