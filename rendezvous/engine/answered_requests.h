// SPDX-License-Identifier: Apache-2.0
// Remembers the answers to requests that clients may send again. A client whose connection is lost
// repeats its unanswered requests; with this memory the store repeats the answers and executes
// nothing twice, however late a copy of a request arrives.
//
// A client names its session, a random number, on every connection. It numbers its modifying
// requests from 1, and each request carries the lowest number that is still unanswered: answers
// below it are dropped, and a late copy of such a request is rejected as past.
//
// A session is forgotten kept_ns after its last connection has closed, or immediately if it has no
// answers then. Clients stop repeating earlier than that (kRepeatFor in proto/wire/store_wire.h).
// Sessions without a connection are forgotten early only if there are more than Limits::answers
// answers; a client that then repeats a request gets an error that its outcome is unknown.
//
// Pure. Not thread-safe. Times may be from any clock that never goes backwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "proto/contract/status.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

class AnsweredRequests {
 public:
  struct Limits {
    std::size_t answers = 256u << 10;  // Each takes about 150 bytes.
    std::size_t answers_per_session = 4096;
    std::uint64_t kept_ns = 600'000'000'000;
  };
  using Answer = std::variant<Done, Number, Error>;
  enum class Known {
    kNew,       // Execute it and remember the answer.
    kAnswered,  // It was executed; repeat the answer.
    kPast,      // Its client has received the answer or has given up.
    kUnclear,   // It was sent before, and its session may have been forgotten since.
    kTooMany,   // There is no memory for its answer; do not execute it.
  };
  struct Finding {
    Known known = Known::kNew;
    const Answer* answer = nullptr;  // Valid until the next call.
  };

  AnsweredRequests() : AnsweredRequests(Limits()) {}
  explicit AnsweredRequests(Limits limits) : limits_(limits) {}

  // Call when a connection of that session was opened or closed.
  void begin(SessionId session);
  void end(SessionId session);
  // Forgets expired sessions. end() uses the time of the last call.
  void advance(std::uint64_t now_ns) {
    now_ns_ = now_ns;
    if (!ended_.empty()) forget_ended();
  }
  // Looks up a request. Its session must have begun.
  Finding find(SessionId session, const Numbered& request);
  // Requires that find() returned kNew.
  void remember(SessionId session, std::uint64_t number, Answer answer);
  // Forgets everything when a new generation starts, because older clients are no longer served.
  void clear();

  std::size_t sessions() const { return sessions_.size(); }
  std::size_t answers() const { return answers_; }

 private:
  struct Session {
    std::size_t connections = 0;
    std::uint64_t ended_ns = 0;
    std::uint64_t lowest = 1;
    std::map<std::uint64_t, Answer> answers;
    bool has_gaps = false;  // Some older answers may have been forgotten.
  };
  using Sessions = std::map<SessionId, Session>;

  Session& session_of(SessionId id);
  void raise_lowest(Session& session, std::uint64_t lowest);
  bool make_room();
  void forget_early();
  void forget(Sessions::iterator session);
  void forget_ended();

  const Limits limits_;
  Sessions sessions_;
  // Sessions without a connection, ordered by the time at which their last connection closed.
  std::set<std::pair<std::uint64_t, SessionId>> ended_;
  std::size_t answers_ = 0;
  bool dropped_early_ = false;
  std::uint64_t now_ns_ = 0;
};

}  // namespace ivy::store
