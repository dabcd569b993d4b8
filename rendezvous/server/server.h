// SPDX-License-Identifier: Apache-2.0
// The store as a server: connections of both dialects, served by one engine on one loop.
//
//   native socket   hello, challenge, proof within the deadline, then frames (store_wire.h)
//   torch socket    requests immediately; only the job's hosts may use it, because torch cannot
//                   authenticate
//
// A torch client that is a process of this host must belong to the server's user or to root, as
// reported by the kernel (peer_owner.h). torch's clients have separate limits for memory and
// connections, so that they cannot exhaust those of authenticated clients.
//
// A slow or hostile client harms no other one: its requests are not read while its replies pile up,
// and it is closed when other clients' actions (a watch) would fill its buffer. Every reason for
// closing a connection is reported once through `log`, with a limit of lines per second.
//
// Thread: the loop's. Lifetime: until one turn of the loop after stop().
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/dialects/connection.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/server/admission.h"
#include "rendezvous/server/alive.h"
#include "rendezvous/server/limited_log.h"
#include "rendezvous/server/listeners.h"
#include "rendezvous/server/readiness.h"
#include "rendezvous/server/sessions.h"

namespace ivy::store {

struct ServerLimits {
  std::size_t connections = 65'536;
  std::size_t unauthenticated = 8'192;  // Beyond this, the oldest is dropped.
  std::uint64_t handshake_ns = 5'000'000'000;
  std::size_t unread_pause_bytes = 1u << 20;  // A client with more unsent replies is not read.
  // A client with more is closed; one reply may be 64 MiB.
  std::size_t unread_close_bytes = 80u << 20;
  // Limits of all torch clients together. The bytes are those of unfinished requests, of requests
  // behind a wait, and of unread replies. Beyond the limit, the client that uses the most is
  // dropped.
  std::size_t torch_connections = 16'384;
  std::size_t torch_bytes = 1u << 30;
};

// Returns the limits for a job with this many torch connections; 0 means the default number. At
// least half of the process's descriptors remain for authenticated clients.
ServerLimits server_limits(std::size_t torch_connections);

struct ServerOptions {
  std::string job_id;  // 32 hexadecimal digits.
  std::string token;   // The job's secret, 32 bytes.
  std::uint32_t generation = 0;
  // Numeric addresses that may use the torch socket; loopback always may.
  std::vector<std::string> torch_peers;
  EngineLimits engine;
  ServerLimits limits;
  std::function<void(const std::string&)> log;
};

class Server {
 public:
  Server(boost::asio::io_context& loop, ServerOptions options);
  ~Server();

  using Dialect = store::Dialect;
  // Takes ownership of a listening socket.
  void listen(int listening_fd, Dialect dialect);
  // Forgets everything of the previous generation and closes its connections.
  void begin_generation(std::uint32_t generation);
  // Sends the replies to requests that did not come over a connection.
  void answer(Replies& replies);
  Engine& engine() { return engine_; }
  // For the stall watchdog: the time, on the monotonic clock, when a reply was last sent to a
  // client that had waited, or when a request last changed something.
  std::uint64_t last_progress_ns() const { return progress_.last_ns; }
  std::size_t connection_count() const { return sessions_.size(); }
  // Accepts no more clients; existing ones are still served.
  void stop_listening() { listeners_.close(); }
  // Clients from this numeric address may use the torch socket.
  void admit_torch(std::string address) { admission_.admit(std::move(address)); }
  // Rejects new clients. Native clients get the reason after they have proved that they know the
  // token.
  void reject_joins(std::string why) { identity_.rejection = std::move(why); }
  void stop();

 private:
  SessionPointer take_client(Descriptor socket, const sockaddr_storage& from, Dialect dialect);
  void wait_for_events();
  void serve_event(const SessionPointer& session, const Readiness::Event& event);
  void wait_readable(const SessionPointer& session);
  void read_some(const SessionPointer& session);
  void receive(const SessionPointer& session, std::string_view bytes);
  // Puts each reply into the buffer of its client's connection, and puts that connection on the
  // list.
  void hand_out(Replies& replies);
  // Puts the connection on the list of those with replies to send or requests to serve.
  void touch(const SessionPointer& session);
  // Sends the replies made in this turn of the loop, then serves the requests that waited for that.
  void end_turn();
  void serve_touched();  // Empties the list.
  void send_some(const SessionPointer& session);
  void disconnect(const SessionPointer& session, const std::string& because);
  void tick();  // Timeouts: of handshakes here, of waits by end_turn().
  void set_timer(std::uint64_t next_ns);
  bool reads_its_replies(const Session& session) const {
    return session.unsent_bytes() <= options_.limits.unread_pause_bytes;
  }

  struct Progress {
    std::uint64_t changes = 0;  // The engine's count at the end of the last turn.
    std::uint64_t last_ns = 0;
  };

  boost::asio::io_context& loop_;
  const ServerOptions options_;
  StoreIdentity identity_;
  Engine engine_;
  LimitedLog log_;
  Admission admission_;
  Listeners listeners_;
  Sessions sessions_;
  const std::unique_ptr<char[]> buffer_;
  Readiness readiness_;
  boost::asio::posix::stream_descriptor ready_;
  boost::asio::steady_timer timer_;
  std::uint64_t timer_ns_ = kNever;      // Latest time of the next tick().
  std::vector<SessionPointer> closed_;   // Closed in this turn; pending events may refer to them.
  std::vector<SessionPointer> touched_;  // They have replies to send or requests to serve.
  bool turn_posted_ = false;
  Progress progress_;
  Alive alive_;
};

// Returns the address of a bound socket, such as "10.0.0.1:4123".
std::string address_of(int fd);

}  // namespace ivy::store
