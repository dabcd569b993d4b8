// The store as a server: connections of both dialects on one engine, on one loop.
//
//   native socket   hello, challenge, proof within the deadline, then frames (store_wire.h)
//   torch socket    requests at once: torch cannot authenticate, so only the job's hosts may use it
//
// A torch client that is a process of this host must belong to the server's own user or to root, as
// the kernel tells (peer_owner.h). torch's clients have limits of their own for memory and
// connections, so that they cannot use up those of authenticated clients.
//
// A slow or hostile client costs only itself: its requests are not read while its replies pile up,
// and it is closed when other clients' actions (a watch) would fill its buffer. Every reason for
// closing a connection is reported once through `log`, with a limit of lines per second.
//
// Thread: the loop's. Lifetime: until stop() and one more turn of the loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

struct ServerLimits {
  std::size_t connections = 65'536;
  std::size_t unauthenticated = 8'192;  // Beyond it the oldest is dropped.
  std::uint64_t handshake_ns = 5'000'000'000;
  std::size_t unread_pause_bytes = 1u << 20;   // Replies beyond it: the client is not read.
  std::size_t unread_close_bytes = 80u << 20;  // Beyond it: it is closed. One reply may be 64 MiB.
  // For all torch clients together. The bytes are those of unfinished requests, of requests behind
  // a wait, and of unread replies. Beyond the limit the client that holds the most is dropped.
  std::size_t torch_connections = 16'384;
  std::size_t torch_bytes = 1u << 30;
};

// Returns the torch_bytes limit for a job with this many torch connections.
std::size_t torch_bytes_for(std::size_t connections);

struct ServerOptions {
  std::string job_id;  // 32 hexadecimal digits.
  std::string token;   // 32 bytes.
  std::uint32_t generation = 0;
  // Numeric addresses that may use the torch socket; loopback always may.
  std::vector<std::string> torch_peers;
  EngineLimits engine;
  ServerLimits limits;
  std::function<void(const std::string&)> log;
  // Called when the log on the disk (keep_in) cannot be written any more. Every request that it
  // would have made durable has been answered with an error, and no client is served any more.
  std::function<void(const std::string&)> log_lost;
  // For a leaf's server (leaf_serve.cc): its clients' requests go to this front, not to an engine
  // of the server's own, and they are greeted with `epoch`, that of the store behind it. The front
  // outlives the server.
  StoreFront* front = nullptr;
  std::string epoch;
  // Called after each turn, when `front` has got all requests of the turn.
  std::function<void()> turn_ended;
};

class Server {
 public:
  Server(boost::asio::io_context& loop, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  enum class Dialect { kNative, kTorch };
  // Call it before listen(): replays the log in this directory (wal_file.h) and takes its epoch;
  // changes that are acknowledged from now on are in the log and outlive this process.
  // FailedPrecondition: the log is of a later generation than ServerOptions.
  Result<void> keep_in(const std::string& directory);
  // Takes a listening socket over.
  void listen(int listening_fd, Dialect dialect);
  // Takes over a connection of the native dialect, and the bytes that were already read from it.
  void adopt(int fd, std::string_view arrived);
  // Forgets everything of the generation before, and closes its connections.
  void begin_generation(std::uint32_t generation);
  // Sends replies of `front` that came later than their request.
  void answer(Replies& replies);
  // Tells that `front` takes requests again.
  void go_on();
  // Returns the wait graph as text.
  std::string why() const;
  // For the stall watchdog: when a reply was last sent to a client that had waited, or a request
  // last changed something, on the steady clock; and whether any client waits.
  std::uint64_t last_progress_ns() const;
  bool anybody_waits() const;
  // Returns the start of the longest wait, or nothing if no client waits. Looks at every wait.
  std::optional<std::uint64_t> longest_wait_since_ns() const;
  std::size_t connection_count() const;
  // Takes no more clients; those that are there are served on.
  void stop_listening();
  // Refuses new clients; native ones are told why, once they have proved that they know the token.
  void refuse_joins(std::string why);
  // The number of requests served since the start.
  std::uint64_t request_count() const;
  void stop();

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

// "10.0.0.1:4123" of a bound socket.
std::string address_of(int fd);

}  // namespace ivy::store
