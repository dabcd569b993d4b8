// TLS for gRPC: a connection to an agent on one side, on the other a socket pair whose far end gRPC
// speaks plain HTTP/2 on. gRPC 1.51 would make and forget an SSL context for each connection, which
// costs more than the handshake, and knows no reasons when a dial fails.
//
//   connecting ─▶ shaking hands ─▶ open ─▶ over
//
// Nothing that gRPC writes is read before the agent is believed. The end of either side ends the
// other, behind what it had written.
//
// Thread: the loop's. Lifetime: keeps itself by its pending operations until it is over or the loop
// is gone; what others ask of it stands in a Story, which any thread may let go of.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <string>

#include "launcher/links/agent_tls.h"

namespace ivy {

class AgentTunnel : public std::enable_shared_from_this<AgentTunnel> {
 public:
  struct Story {
    AgentVerdict verdict;
    bool is_connected = false;  // The agent has spoken: it takes our certificate, too.
    // Why there is no connection, in the words of agent_failure.h; empty while there may be one.
    std::string failure;
  };

  AgentTunnel(boost::asio::io_context& loop, std::shared_ptr<AgentTls> tls, std::string asked);
  AgentTunnel(const AgentTunnel&) = delete;
  AgentTunnel& operator=(const AgentTunnel&) = delete;

  // Begins to connect. Returns gRPC's end; the receiver owns it.
  Result<int> start(const std::string& address, std::uint16_t port);
  const std::shared_ptr<const Story> story() const { return story_; }
  // Nobody waits for it any more.
  void give_up() { end(); }

 private:
  using Step = void (AgentTunnel::*)();
  void shake_hands();
  void pump_down();
  void pump_up();
  bool write_outer();
  bool write_inner();
  void outer_ended(int result);
  template <class Socket>
  void when(Socket& socket, typename Socket::wait_type what, Step step);
  void fail(const std::string& why);
  void end();

  const std::shared_ptr<AgentTls> tls_;
  const std::string asked_;
  const std::shared_ptr<Story> story_ = std::make_shared<Story>();
  boost::asio::ip::tcp::socket outer_;
  boost::asio::posix::stream_descriptor inner_;
  AgentTls::Connection connection_;  // Of outer_, and ends before it.
  std::string down_;                 // Taken from gRPC, not yet with the agent.
  std::string up_;                   // The other way.
  bool is_over_ = false;
};

}  // namespace ivy
