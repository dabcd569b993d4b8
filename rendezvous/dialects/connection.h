// One connection of the store's server: what has arrived, which dialect it is in, what must leave.
// Pure of sockets, so that tests feed it bytes. Thread: the loop's. Lifetime: the engine outlives
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/handshake.h"
#include "rendezvous/dialects/native_dialect.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// What a connection needs to know of the store that it belongs to.
struct StoreIdentity {
  std::string job_id;
  std::string token;
  std::string epoch;         // kEpochBytes, new in every incarnation.
  std::string refusal = {};  // Why nobody else is let in; empty: everybody is.
};

class Connection {
 public:
  virtual ~Connection() = default;
  // Bytes from the client, or none to go on. An error ends the connection, after `unsent` has been
  // offered to the client once more.
  virtual Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) = 0;
  virtual Result<void> reply(const Reply& reply) = 0;
  // A change that is not said, as too much is unsent: the watch ends, its client is told so. False:
  // this dialect cannot say it.
  virtual bool overflow(const Reply&) { return false; }
  // Requests have arrived that are served in another turn: call receive({}).
  virtual bool has_more() const { return false; }
  // What a client that need not prove itself makes this process keep, beside `unsent`.
  virtual std::size_t kept_bytes() const { return 0; }
  // 0: not yet a client of the engine.
  virtual ClientId client() const = 0;
  virtual bool is_authenticated() const = 0;
  // A leaf's: the clients of the engine that it speaks for besides that one, as they come and go.
  virtual std::vector<ClientId> take_joined() { return {}; }
  virtual std::vector<ClientId> take_left() { return {}; }
  virtual std::size_t client_count() const { return 1; }

  // Bytes for the client; the owner takes from the front what it has sent.
  std::string unsent;
};

// `for_leaves`: the engine that leaves speak to; null where none may come.
std::unique_ptr<Connection> make_native_connection(StoreFront& engine, const StoreIdentity& store,
                                                   std::string address,
                                                   Engine* for_leaves = nullptr);
std::unique_ptr<Connection> make_torch_connection(StoreFront& engine, std::string address);

}  // namespace ivy::store
