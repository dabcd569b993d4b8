// SPDX-License-Identifier: Apache-2.0
// TLS for gRPC. On one side, the *outer* one, is the TLS connection to an agent; on the other, the
// *inner* one, a socket pair on whose far end gRPC speaks plain HTTP/2. gRPC 1.51 would instead
// make an SSL context for each connection, which costs more than the handshake, and would not
// report why a dial failed.
//
//   connecting ─▶ shaking hands ─▶ open ─▶ over
//
// Nothing that gRPC writes is read before the agent was verified. When one side ends, the bytes
// that it had written are passed on, and then the other side ends.
//
// Thread: the thread of its own loop. A launcher has a few such threads, because a hundred
// handshakes would otherwise block the launcher's loop. Lifetime: its pending operations keep it
// alive until it is over or its loop has ended. Other threads read its state from a SharedState.
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
    // The agent has sent data, so it has accepted the user's certificate, too.
    bool is_connected = false;
    // Why there is no connection, in the words that agent_failure.h understands; empty while there
    // may be one.
    std::string failure;
  };
  // A copy of the state for other threads. It is updated before gRPC can notice the change. Thread:
  // any.
  class SharedState {
   public:
    State snapshot() const {
      const std::lock_guard lock(mutex_);
      return state_;
    }
    void update(const State& state) {
      const std::lock_guard lock(mutex_);
      state_ = state;
    }

   private:
    mutable std::mutex mutex_;
    State state_;
  };

  AgentTunnel(boost::asio::io_context& loop, std::shared_ptr<AgentTls> tls, std::string host_name);
  AgentTunnel(const AgentTunnel&) = delete;
  AgentTunnel& operator=(const AgentTunnel&) = delete;

  // Starts to connect. Returns gRPC's end of the socket pair, which the caller then owns. Thread:
  // any.
  Result<int> start(const std::string& address, std::uint16_t port);
  std::shared_ptr<const SharedState> shared_state() const { return shared_state_; }
  // Ends the tunnel unless it is connected, because its caller no longer waits.
  void give_up() {
    if (!state_.is_connected) end();
  }

 private:
  using Step = void (AgentTunnel::*)();
  // The steps of the outer connection.
  void connect(const boost::asio::ip::tcp::endpoint& agent);
  void do_handshake();
  // From gRPC to the agent, and from the agent to gRPC.
  void pump_down();
  void pump_up();
  // Return true when all bytes were written.
  bool write_outer();
  bool write_inner();
  void outer_ended(int result);
  template <class Socket>
  void when(Socket& socket, typename Socket::wait_type what, Step step);
  void fail(const std::string& why);
  void end();

  const std::shared_ptr<AgentTls> tls_;
  const std::string host_name_;
  State state_;
  const std::shared_ptr<SharedState> shared_state_ = std::make_shared<SharedState>();
  boost::asio::ip::tcp::socket outer_;
  boost::asio::posix::stream_descriptor inner_;
  AgentTls::Connection connection_;  // TLS over outer_, and therefore destroyed before it.
  std::string down_;                 // Bytes from gRPC that have not been sent to the agent.
  std::string up_;                   // Bytes from the agent that have not been given to gRPC.
  bool is_over_ = false;
};

// All tunnels of a launcher, with their threads and their TLS context.
//
// Not thread-safe. Lifetime: its destructor ends every tunnel.
class AgentTunnels {
 public:
  struct Dialled {
    int socket = -1;  // gRPC's end, which the caller then owns.
    std::weak_ptr<AgentTunnel> tunnel;
    std::shared_ptr<const AgentTunnel::SharedState> shared_state;
    boost::asio::io_context* loop = nullptr;
  };

  // Limit of the threads, which are started as they are needed. There are never more than the
  // machine has cores.
  static constexpr std::size_t kMaxThreads = 4;

  explicit AgentTunnels(std::shared_ptr<AgentTls> tls);
  ~AgentTunnels();
  AgentTunnels(const AgentTunnels&) = delete;
  AgentTunnels& operator=(const AgentTunnels&) = delete;

  Result<Dialled> dial(const std::string& host_name, const std::string& address,
                       std::uint16_t port);

 private:
  struct Worker;
  boost::asio::io_context& next_loop();

  const std::shared_ptr<AgentTls> tls_;
  const std::size_t threads_;
  std::size_t turn_ = 0;  // Tunnels that were assigned round-robin, once all threads run.
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace ivy
