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
// Pure: bytes and time come in, bytes and replies go out. Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/kept_keys.h"
#include "rendezvous/dialects/leaf_wire.h"
#include "rendezvous/dialects/shared_requests.h"
#include "rendezvous/dialects/upstream.h"
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
  std::uint64_t asked = 0;      // What its clients have asked.
  std::uint64_t forwarded = 0;  // Those that went to the store.
};

class Leaf : public StoreFront {
 public:
  explicit Leaf(std::uint32_t generation, LeafLimits limits = {})
      : limits_(limits), generation_(generation), kept_(limits.kept_keys, limits.kept_bytes) {}

  // StoreFront: Engine documents these functions.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns) override;
  void leave(ClientId client) override;
  void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) override;
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
             Replies& out) override;
  std::uint64_t advance(std::uint64_t now_ns, Replies& out) override;
  void end_watch(ClientId client, RequestId request) override;
  // A leaf belongs to one generation: this ends every wait with Aborted.
  void begin_generation(std::uint32_t generation, Replies& out) override;
  std::uint32_t generation() const override { return generation_; }
  std::uint64_t changes() const override { return 0; }
  bool takes_more() const override { return unsent.size() <= limits_.unsent_bytes; }

  // Takes bytes from the store; replies to clients are added to `out`. An error ends the connection
  // to it.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  // Bytes for the store; the owner takes from the front what it has sent.
  std::string unsent;

  LeafCounts counts() const { return {asked_, upstream_.sent()}; }
  std::size_t open_requests() const { return own_.size() + shared_.size(); }

 private:
  // A client's request while the leaf looks at it.
  struct Asking {
    Asker asker;
    Space space;
    std::uint64_t now_ns;
    Replies& out;
    template <class Body>
    bool answer(Body body) {
      answer_to(asker.client, asker.request, std::move(body), out);
      return true;
    }
  };

  // Each returns true if the request need not go up by itself.
  bool answers(Check& check, Asking& here);
  bool answers(Get& get, Asking& here);
  bool answers(Wait& wait, Asking& here);
  bool answers(MultiGet& get, Asking& here);
  bool answers(Cancel& cancel, Asking& here);
  template <class Other>
  bool answers(Other&, Asking&) {
    return false;
  }
  void forward(const Request& body, const Asking& here);
  Result<void> take(const WireFrame& frame, std::uint64_t now_ns, Replies& out);
  Result<bool> take_marks(const UpRequest& asked, const ReplyBody& body, PayloadReader& in);
  void end_check(const UpRequest& asked, ReplyBody& body, std::uint64_t now_ns, Replies& out);
  void end_writes(const UpRequest& asked);

  const LeafLimits limits_;
  std::uint32_t generation_;
  std::uint64_t asked_ = 0;
  ClientId last_client_ = 0;
  std::unordered_map<ClientId, Space> clients_;
  WireDecoder decoder_{kMaxLeafFrameBytes};
  Upstream upstream_{unsent};
  std::map<Asker, std::uint32_t>
      own_;  // Requests that are not shared, by what upstream calls them.
  SharedRequests shared_{upstream_};
  KeptKeys kept_;
  std::map<std::string, std::vector<Asker>>
      following_;  // More askers, while a FOLLOW is under way.
  std::uint64_t next_told_ns_ = 0;
  std::uint64_t now_ns_ = 0;  // The time of the last call that told it.
};

}  // namespace ivy::store
