// SPDX-License-Identifier: Apache-2.0
// The open watches of one client, with the changes that the store has reported and the caller has
// not taken yet. shared_connection.h reports received frames and lost connections to it.
//
// Changes may be missed: the connection was lost, this client did not read (the store then ends the
// watch), or the caller did not take changes until a limit below was reached. A kOverflow in the
// queue marks the position of missed changes: a caller that reads the keys after it sees everything
// up to there.
//
// Pure. Not thread-safe.
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
  // Limits of one watch. Beyond either, all of its changes are dropped.
  static constexpr std::size_t kMaxChanges = 64u << 10;
  static constexpr std::size_t kMaxBytes = 64u << 20;

  void add(std::uint32_t id, std::string_view prefix);
  bool has(std::uint32_t id) const { return watches_.contains(id); }
  void remove(std::uint32_t id) { watches_.erase(id); }
  const std::string& prefix(std::uint32_t id) const { return watches_.at(id).prefix; }

  // Returns whether the store must be asked to open the watch: initially, and after the watch has
  // become invalid.
  bool must_reopen(std::uint32_t id) const { return watches_.at(id).state == State::kInvalid; }
  void note_requested(std::uint32_t id) { watches_.at(id).state = State::kRequested; }
  void note_rejected(std::uint32_t id);

  // Handles a frame that the store sent for a watch. Returns false if it is malformed.
  bool take(std::uint32_t id, std::string_view payload);
  // Call when the connection is lost. The connection itself repeats unanswered requests.
  void invalidate();
  // Returns the oldest change that was not returned yet, or nothing.
  std::optional<Changed> next(std::uint32_t id);

 private:
  enum class State { kInvalid, kRequested, kOpen };
  struct Watched {
    std::string prefix;
    State state = State::kInvalid;
    bool was_open = false;
    std::deque<Changed> changes;
    std::size_t bytes = 0;
  };
  static void note_missed(Watched& watch);

  std::map<std::uint32_t, Watched> watches_;
};

}  // namespace ivy::store
