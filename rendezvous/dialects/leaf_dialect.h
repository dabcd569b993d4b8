// The store's end of a leaf's connection: each client of the leaf is a client of the engine, with
// its own rank, waits and watches, so the wait graph shows it as if it were connected itself. The
// frames: leaf_wire.h. The handshake has been done before (connection.h).
//
// Pure. Thread: one at a time. Lifetime: the engine outlives it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/leaf_wire.h"
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
  LeafDialect(const LeafDialect&) = delete;
  LeafDialect& operator=(const LeafDialect&) = delete;

  // Both are as in NativeDialect.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  void reply(const Reply& reply, std::string& bytes);
  bool has_more() const { return turn_over_; }
  // The leaf's own client, in the native space.
  ClientId client() const { return own_.front(); }
  std::size_t client_count() const { return members_.size(); }
  // Clients of the engine that this connection has begun, or ceased, to speak for since the last
  // call.
  std::vector<ClientId> take_joined() { return std::exchange(joined_, {}); }
  std::vector<ClientId> take_left() { return std::exchange(left_, {}); }

 private:
  // A request that reads, whose values the leaf may be allowed to keep.
  struct OpenRead {
    Space space = Space::kNative;
    std::vector<std::string> keys;
    std::uint32_t client = 0;
  };
  struct Member {
    ClientId id = 0;
    Space space = Space::kNative;
  };

  LeafDialect(Engine& engine, std::uint32_t generation, std::string address)
      : engine_(engine), generation_(generation), address_(std::move(address)) {}
  Result<void> serve(const WireFrame& frame, Replies& out);
  Result<void> join(PayloadReader& in);
  Result<void> leave(PayloadReader& in);
  Result<void> describe(PayloadReader& in);
  Result<void> set_companions(PayloadReader& in);
  Result<void> follow(std::uint32_t id, PayloadReader& in, Replies& out);
  Result<void> request(const FrameHead& head, PayloadReader& in, Replies& out);
  Result<const Member*> member(std::uint32_t number) const;
  ReplyBody ask(Space space, Request request);
  bool may_keep(Space space, const std::string& key, const std::string* value);
  std::optional<bool> watch(Space space, const std::string& key);
  void put_marks(const OpenRead& read, const Reply& reply, std::string& payload);

  static constexpr std::size_t kFollowedSpaces = 2;  // The native one and torch's.

  Engine& engine_;
  const std::uint32_t generation_;
  const std::string address_;
  std::array<ClientId, kFollowedSpaces> own_{};  // The leaf's own clients, by space.
  WireDecoder decoder_{kMaxLeafFrameBytes};
  std::unordered_map<std::uint32_t, Member> members_;
  std::unordered_map<std::uint32_t, OpenRead> reads_;
  std::array<std::set<std::string>, kFollowedSpaces> followed_;  // FORGET will name these keys.
  std::vector<ClientId> joined_;
  std::vector<ClientId> left_;
  RequestId next_own_ = RequestId{1} << 32;  // Above the ids of the frames.
  std::uint64_t now_ns_ = 0;                 // The time of the last turn.
  bool turn_over_ = false;
};

}  // namespace ivy::store
