// A leaf's requests on their way to the store: each has a number of its own and a note about what
// to do with its answer. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/dialects/leaf_wire.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

// A client's request, as the client's connection names it.
struct Asker {
  ClientId client = 0;
  RequestId request = 0;
  auto operator<=>(const Asker&) const = default;
};

struct UpRequest {
  std::uint32_t id = 0;  // Upstream numbers its requests by it.
  Asker asker;
  Space space = Space::kNative;
  std::string shared;               // The name of its SharedRequests; empty: it is not shared.
  std::vector<std::string> reads;   // Keys whose values may be kept.
  std::vector<std::string> writes;  // Keys that it may change, by name_of().
  std::string checks;               // The key of a check of one key.
  bool is_follow = false;           // FOLLOW: asks for FORGET as well.
  bool stays_open = false;
  bool is_silent = false;  // No client waits for its answer.
};

class Upstream {
 public:
  // Frames are appended to `unsent`.
  explicit Upstream(std::string& unsent) : unsent_(unsent) {}

  std::uint32_t request(const Request& body, UpRequest note, std::uint64_t now_ns);
  std::uint32_t follow(UpRequest note);
  void cancel(ClientId client, std::uint32_t id);
  void tell(LeafOp op, std::string_view payload);
  // Returns null if no client waits for that answer any more.
  UpRequest* find(std::uint32_t id);
  void erase(std::uint32_t id) { open_.erase(id); }
  void clear() { open_.clear(); }
  std::uint64_t sent() const { return sent_; }  // Frames of requests and of companions.

 private:
  std::uint32_t add(UpRequest note);
  void put(std::size_t kind, std::uint32_t id, std::string_view payload);

  std::string& unsent_;
  std::uint32_t last_id_ = 0;
  std::unordered_map<std::uint32_t, UpRequest> open_;
  std::uint64_t sent_ = 0;
};

}  // namespace ivy::store
