// SPDX-License-Identifier: Apache-2.0
// TLS for gRPC: a connection to an agent on one side, on the other a socket pair whose far end gRPC
// speaks plain HTTP/2 on. gRPC 1.51 would make and forget an SSL context for each connection, which
// costs more than the handshake, and knows no reasons when a dial fails.
//
//   connecting ─▶ shaking hands ─▶ open ─▶ over
//
// Nothing that gRPC writes is read before the agent is believed. The end of either side ends the
// other, behind what it had written.
//
// Thread: that of its own loop, of which a launcher has a few: a hundred handshakes would otherwise
// keep the launcher's loop from everything else. Lifetime: keeps itself by its pending operations
// until it is over or its loop is gone; other threads read its state from a SharedState.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "launcher/links/agent/agent_tls.h"

namespace ivy {

class AgentTunnel : public std::enable_shared_from_this<AgentTunnel> {
 public:
  struct State {
    AgentVerdict verdict;
    bool is_connected = false;  // The agent has spoken: it takes our certificate, too.
    // Why there is no connection, in the words of agent_failure.h; empty while there may be one.
    std::string failure;
  };
  // Reports state before gRPC does. Thread: any.
  class SharedState {
   public:
    State look() const {
      const std::lock_guard lock(mutex_);
      return state_;
    }
    void tell(const State& state) {
      const std::lock_guard lock(mutex_);
      state_ = state;
    }

   private:
    mutable std::mutex mutex_;
    State state_;
  };

  AgentTunnel(boost::asio::io_context& loop, std::shared_ptr<AgentTls> tls, std::string asked);
  AgentTunnel(const AgentTunnel&) = delete;
  AgentTunnel& operator=(const AgentTunnel&) = delete;

  // Begins to connect. Returns gRPC's end; the receiver owns it. Thread: any.
  Result<int> start(const std::string& address, std::uint16_t port);
  std::shared_ptr<const SharedState> shared_state() const { return shared_state_; }
  // Ends the tunnel if it is not connected yet: its caller waits no longer.
  void give_up() {
    if (!state_.is_connected) end();
  }

 private:
  using Step = void (AgentTunnel::*)();
  void connect(const boost::asio::ip::tcp::endpoint& agent);
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
  State state_;
  const std::shared_ptr<SharedState> shared_state_ = std::make_shared<SharedState>();
  boost::asio::ip::tcp::socket outer_;
  boost::asio::posix::stream_descriptor inner_;
  AgentTls::Connection connection_;  // TLS over outer_, destroyed before it.
  std::string down_;                 // Bytes taken from gRPC, not yet sent to the agent.
  std::string up_;                   // Bytes from the agent, not yet given to gRPC.
  bool is_over_ = false;
};

// All tunnels of a launcher: what they share, and their threads.
//
// Thread: one at a time. Lifetime: ends every tunnel with it.
class AgentTunnels {
 public:
  struct Dialled {
    int socket = -1;  // gRPC's end; the receiver owns it.
    std::weak_ptr<AgentTunnel> tunnel;
    std::shared_ptr<const AgentTunnel::SharedState> shared_state;
    boost::asio::io_context* loop = nullptr;
  };

  // Threads are started as they are needed, and no more than the machine has cores.
  static constexpr std::size_t kMostThreads = 4;

  explicit AgentTunnels(std::shared_ptr<AgentTls> tls);
  ~AgentTunnels();
  AgentTunnels(const AgentTunnels&) = delete;
  AgentTunnels& operator=(const AgentTunnels&) = delete;

  Result<Dialled> dial(const std::string& asked, const std::string& address, std::uint16_t port);

 private:
  struct Worker;
  boost::asio::io_context& next_loop();

  const std::shared_ptr<AgentTls> tls_;
  const std::size_t threads_;
  std::size_t turn_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace ivy
