// SPDX-License-Identifier: Apache-2.0
// One connection of the store's server: the received bytes, their dialect, and the bytes to send.
// It has no socket, so tests can feed it bytes. Thread: the loop's. Lifetime: the engine outlives
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/wire/handshake.h"
#include "rendezvous/dialects/native_dialect.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// Properties of the store that its connections need.
struct StoreIdentity {
  std::string job_id;
  std::string token;
  std::string epoch;           // kEpochBytes, new in every incarnation.
  std::string rejection = {};  // Why no more clients may join; empty if they may.
};

class Connection {
 public:
  virtual ~Connection() = default;
  // Takes bytes from the client, or none to continue with bytes that were left over. An error
  // closes the connection, after one more attempt to send `unsent`.
  virtual Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) = 0;
  virtual Result<void> reply(const Reply& reply) = 0;
  // Drops a watch's change because too much is unsent: the watch ends and its client is notified.
  // Returns false if this dialect cannot express that.
  virtual bool overflow(const Reply&) { return false; }
  // Returns whether received requests were left for another turn; if so, call receive({}).
  virtual bool has_more() const { return false; }
  // Returns whether nothing more is read and the connection ends once `unsent` has been sent.
  virtual bool is_over() const { return false; }
  // Bytes that this process keeps for an unauthenticated client, besides `unsent`.
  virtual std::size_t kept_bytes() const { return 0; }
  // Returns 0 until the connection is a client of the engine.
  virtual ClientId client() const = 0;
  virtual bool is_authenticated() const = 0;

  // Bytes for the client; the owner removes sent bytes from the front.
  std::string unsent;
};

std::unique_ptr<Connection> make_native_connection(Engine& engine, const StoreIdentity& store,
                                                   std::string address);
std::unique_ptr<Connection> make_torch_connection(Engine& engine, std::string address);

}  // namespace ivy::store
