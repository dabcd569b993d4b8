// The store's part on each host: one connection to the store for all clients of the host. It keeps
// what is written once, lets equal requests that wait go up as one, and answers steady checks of a
// key that is not there by itself.
//
//   clients of the host ──▶ server (server.h) ──▶ Leaf ──frames (leaf_wire.h)──▶ the store
//
// What it answers by itself is what the store has allowed it to know until FORGET. Everything else
// goes up, in the order in which it came, as a request of that client: the store knows every client
// by rank, pid and host.
//
// A flight is a request for one key, as it is or when it comes, on behalf of several clients.
// `members` were there when it left, so its answer is theirs. `joiners` came later, when the answer
// may have been under way: they have a share in it only if the value is one that may be kept;
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
  std::size_t kept_bytes = 64u << 20;   // Beyond it nothing more is kept; everything goes up.
  std::size_t kept_keys = 64u << 10;    // Those that are known to be missing as well.
  std::size_t unsent_bytes = 4u << 20;  // Beyond it no client is read.
  // A key that was missing so often in a row is followed from then on.
  int steady_checks = 3;
  // Who shares a wait for so long is named to the store, for who-waits-for-whom.
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

  // Of StoreFront; see Engine.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns) override;
  void leave(ClientId client) override;
  void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) override;
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
             Replies& out) override;
  std::uint64_t advance(std::uint64_t now_ns, Replies& out) override;
  void end_watch(ClientId client, RequestId request) override;
  // A leaf belongs to one generation: everything that waits ends with Aborted.
  void begin_generation(std::uint32_t generation, Replies& out) override;
  std::uint32_t generation() const override;
  std::uint64_t changes() const override;
  bool takes_more() const override;

  // Bytes from the store; replies to clients land in `out`. An error ends the connection to it.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  // Bytes for the store; the owner takes from the front what it has sent.
  std::string unsent;

  LeafCounts counts() const;
  std::size_t open_requests() const;  // Those that have gone up, or share a flight.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
