// The store's part on each host: one connection to the store for all clients of the host. It caches
// values that are written once, sends equal waiting requests to the store as one, and answers
// steady checks of a missing key by itself.
//
//   clients of the host ──▶ server (server.h) ──▶ Leaf ──frames (leaf_wire.h)──▶ the store
//
// It answers by itself only what the store has allowed it to keep until FORGET. Everything else
// goes up to the store, in the order in which it came, as a request of that client: the store knows
// every client by rank, pid and host.
//
// A flight is an in-flight request for one key, for its present value or to wait for it, on behalf
// of several clients. `members` were there when it left, so its answer is theirs. `joiners` came
// later, when the answer may have been under way: they share it only if the value may be kept;
// otherwise they are the members of the next flight. So no answer is older than its request,
// whether or not it was shared.
//
// Pure: bytes and time come in, bytes and replies go out. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

struct LeafLimits {
  std::size_t kept_bytes = 64u << 20;   // Beyond it nothing more is kept.
  std::size_t kept_keys = 64u << 10;    // Includes keys known to be missing.
  std::size_t unsent_bytes = 4u << 20;  // Beyond it no client is read.
  // A key that was missing this many times in a row is followed from then on.
  int steady_checks = 3;
  // Clients that have shared a wait for this long are reported to the store, for its wait graph.
  std::uint64_t share_told_ns = 1'000'000'000;
};

struct LeafCounts {
  std::uint64_t asked = 0;      // By clients.
  std::uint64_t forwarded = 0;  // To the store.
};

class Leaf : public StoreFront {
 public:
  explicit Leaf(std::uint32_t generation, LeafLimits limits = {});
  ~Leaf() override;

  // Implements StoreFront; see Engine.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns) override;
  void leave(ClientId client) override;
  void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) override;
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
             Replies& out) override;
  std::uint64_t advance(std::uint64_t now_ns, Replies& out) override;
  void end_watch(ClientId client, RequestId request) override;
  // A leaf belongs to one generation: this ends every wait with Aborted.
  void begin_generation(std::uint32_t generation, Replies& out) override;
  std::uint32_t generation() const override;
  std::uint64_t changes() const override;
  bool takes_more() const override;

  // Takes bytes from the store; replies to clients are added to `out`. An error ends the connection
  // to it.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  // Bytes for the store; the owner takes from the front what it has sent.
  std::string unsent;

  LeafCounts counts() const;
  std::size_t open_requests() const;  // Sent to the store, or sharing a flight.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
