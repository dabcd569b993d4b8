// The store as a server: connections of both dialects on one engine, on one loop.
//
//   native socket   hello, challenge, proof within the deadline, then frames (store_wire.h)
//   torch socket    requests at once: torch cannot authenticate, so only the job's hosts may
//   connect
//
// A client of torch's that is a process of this host must be the server's own user or root; which
// it is, the kernel says (peer_owner.h). torch's clients have room and connections of their own, so
// that they cannot take those of clients that have proved themselves.
//
// A slow or hostile client costs only itself: its requests are not read while its replies pile up,
// and it is closed when other clients' doings (a watch) would fill its buffer. Every reason for
// which a connection is closed is said once through `log`, at most so many lines per second.
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
  std::size_t unauthenticated = 8'192;  // Then the oldest is dropped.
  std::uint64_t handshake_ns = 5'000'000'000;
  std::size_t unread_pause_bytes = 1u << 20;   // Replies beyond it: the client is not read.
  std::size_t unread_close_bytes = 80u << 20;  // Beyond it: it is closed. One reply may be 64 MiB.
  // Of all of torch's clients together. Bytes: of unfinished requests, of those behind a wait, and
  // of replies that are not read. Beyond it the client goes that holds the most.
  std::size_t torch_connections = 16'384;
  std::size_t torch_bytes = 1u << 30;
};

// What torch's clients of a job with so many connections of theirs may make a store keep.
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
  // With a log on the disk (keep_in): it cannot be written any more. Every request that it would
  // have made lasting has been answered with an error, and nobody is served any more.
  std::function<void(const std::string&)> log_lost;
  // A leaf's server (leaf_serve.cc): what its clients ask goes here, not to an engine of the
  // server's own, and they are greeted with the epoch of the store behind it. It outlives the
  // server.
  StoreFront* front = nullptr;
  std::string epoch;
  // Behind each turn, when what it has caused has been said to `front`.
  std::function<void()> turn_ended;
};

class Server {
 public:
  Server(boost::asio::io_context& loop, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  enum class Dialect { kNative, kTorch };
  // Before listen(): what is acknowledged from now on outlives this process, in a log of this
  // directory (wal_file.h), and what the log says is there already, with the epoch of its clients.
  // FailedPrecondition: the log is of a later generation than ServerOptions.
  Result<void> keep_in(const std::string& directory);
  // Takes a listening socket over.
  void listen(int listening_fd, Dialect dialect);
  // Takes over a connection of the native dialect, and what was already read from it.
  void adopt(int fd, std::string_view arrived);
  // Everything of the generation before is forgotten, and its connections are closed.
  void begin_generation(std::uint32_t generation);
  // Replies of `front` that came later than their request.
  void answer(Replies& replies);
  // `front` takes more again.
  void go_on();
  // Who waits for whom now.
  std::string why() const;
  // When a reply was last sent to a client that had waited, or a request last changed something, on
  // the steady clock; and whether anybody waits. For a watch over stalls.
  std::uint64_t last_progress_ns() const;
  bool anybody_waits() const;
  // Since when somebody has waited, the longest; nothing when nobody does. Looks at every wait.
  std::optional<std::uint64_t> longest_wait_since_ns() const;
  std::size_t connection_count() const;
  // Takes no more clients; those that are there are served on.
  void stop_listening();
  // The same, but native clients are told why, once they have proved that they know the token.
  void refuse_joins(std::string why);
  // Requests that were served since the start.
  std::uint64_t request_count() const;
  void stop();

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

// "10.0.0.1:4123" of a bound socket.
std::string address_of(int fd);

}  // namespace ivy::store
