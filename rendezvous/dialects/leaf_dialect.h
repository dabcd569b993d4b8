// The store's end of a leaf's connection: each client of the leaf is a client of the engine, with
// its own rank, waits and watches, so the wait graph shows it as if it were connected itself. The
// frames: leaf_wire.h. The handshake has been done before (connection.h).
//
// Pure. Thread: one at a time. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

class LeafDialect {
 public:
  // `address` is the leaf's, "10.0.0.2:4123": its clients are on that host. FailedPrecondition:
  // another generation than the present one.
  static Result<std::unique_ptr<LeafDialect>> make(Engine& engine, std::uint32_t generation,
                                                   const std::string& address,
                                                   std::uint64_t now_ns);
  ~LeafDialect();  // Every client of the leaf leaves.

  // See NativeDialect.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  void reply(const Reply& reply, std::string& bytes);
  bool has_more() const;
  // The leaf's own client, in the native space.
  ClientId client() const;
  std::size_t client_count() const;
  // Clients of the engine that this connection has begun, or ceased, to speak for since the last
  // call.
  std::vector<ClientId> take_joined();
  std::vector<ClientId> take_left();

 private:
  struct State;
  explicit LeafDialect(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
