// The watches of one client: which are open, and the changes that the store has told and nobody has
// taken yet. The connection (shared_connection.h) says what arrives and when it is lost.
//
// Changes may be missed: the connection was lost, this client did not read (the store then ends the
// watch), or nobody took the changes until the limits below were reached. A kOverflow stands in the
// row at the place of what was missed: what came before it is older than a look at the keys after
// it.
//
// Pure. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/engine/requests.h"

namespace ivy::store {

class OpenWatches {
 public:
  // For each watch; beyond either all of its changes are forgotten.
  static constexpr std::size_t kMostChanges = 64u << 10;
  static constexpr std::size_t kMostBytes = 64u << 20;

  void add(std::uint32_t id, std::string_view prefix);
  bool has(std::uint32_t id) const { return watches_.contains(id); }
  void remove(std::uint32_t id) { watches_.erase(id); }
  const std::string& prefix(std::uint32_t id) const { return watches_.at(id).prefix; }

  // The store has to be asked: at first, and for a watch that has lapsed.
  bool must_ask(std::uint32_t id) const { return watches_.at(id).state == State::kLapsed; }
  void note_asked(std::uint32_t id) { watches_.at(id).state = State::kAsked; }
  void note_refused(std::uint32_t id);

  // Takes what the store says of a watch; false: damaged.
  bool take(std::uint32_t id, std::string_view payload);
  // The connection is lost. What has been asked and not answered is asked again by the connection.
  void lapse();
  std::optional<Changed> next(std::uint32_t id);

 private:
  enum class State { kLapsed, kAsked, kOpen };
  struct Watched {
    std::string prefix;
    State state = State::kLapsed;
    bool was_open = false;
    std::deque<Changed> changes;
    std::size_t bytes = 0;
  };
  static void note_missed(Watched& watch);

  std::map<std::uint32_t, Watched> watches_;
};

}  // namespace ivy::store
