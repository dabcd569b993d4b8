// The store as a server: connections of both dialects on one engine, on one loop.
//
//   native socket   hello, challenge, proof within the deadline, then frames (store_wire.h)
//   torch socket    requests at once: torch cannot authenticate, so only the job's hosts may
//   connect
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
#include <vector>

#include "proto/status.h"
#include "rendezvous/engine.h"

namespace ivy::store {

struct ServerLimits {
  std::size_t connections = 65'536;
  std::size_t unauthenticated = 8'192;  // Then the oldest is dropped.
  std::uint64_t handshake_ns = 5'000'000'000;
  std::size_t unread_pause_bytes = 1u << 20;   // Replies beyond it: the client is not read.
  std::size_t unread_close_bytes = 80u << 20;  // Beyond it: it is closed. One reply may be 64 MiB.
};

struct ServerOptions {
  std::string job_id;  // 32 hexadecimal digits.
  std::string token;   // 32 bytes.
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
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  enum class Dialect { kNative, kTorch };
  // Takes a listening socket over.
  void listen(int listening_fd, Dialect dialect);
  // Everything of the generation before is forgotten, and its connections are closed.
  void begin_generation(std::uint32_t generation);
  // Who waits for whom now.
  std::string why() const;
  // When a reply was last sent to a client that had waited, or a request last changed something, on
  // the steady clock; and whether anybody waits. For a watch over stalls.
  std::uint64_t last_progress_ns() const;
  bool anybody_waits() const;
  // Since when somebody has waited, the longest; nothing when nobody does. Looks at every wait.
  std::optional<std::uint64_t> longest_wait_since_ns() const;
  std::size_t connection_count() const;
  void stop();

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

// "10.0.0.1:4123" of a bound socket.
std::string address_of(int fd);

}  // namespace ivy::store
